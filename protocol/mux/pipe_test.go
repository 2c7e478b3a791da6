package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

var errPipe = errors.New("the pipe is closed")

type message struct {
	binary bool
	data   []byte
}

// end is one end of a pipe in memory. gate, if set, sees each message before it's written
// and may hold it up or swallow it (false).
type end struct {
	in, out chan message
	mine    *closing
	theirs  *closing
	gate    func(binary bool, data []byte) bool
	written atomic.Int64
}

type closing struct {
	once   sync.Once
	done   chan struct{} // this end is closed
	told   chan struct{} // and the other one knows
	lost   atomic.Bool   // nothing reaches the other end any more
	code   int
	reason string
}

func (c *closing) close(code int, reason string) {
	c.once.Do(func() {
		c.code, c.reason = code, reason
		close(c.done)
		if !c.lost.Load() {
			close(c.told)
		}
	})
}

func newClosing() *closing {
	return &closing{done: make(chan struct{}), told: make(chan struct{})}
}

// newPipe makes a pipe that holds up to room messages each way.
func newPipe(room int) (*end, *end) {
	ab, ba := make(chan message, room), make(chan message, room)
	a, b := newClosing(), newClosing()
	return &end{in: ba, out: ab, mine: a, theirs: b}, &end{in: ab, out: ba, mine: b, theirs: a}
}

func (e *end) Read(context.Context) (bool, []byte, error) {
	select {
	case m := <-e.in:
		return m.binary, m.data, nil
	case <-e.mine.done:
		return false, nil, errPipe
	case <-e.theirs.told:
	}
	select { // what came before the close counts
	case m := <-e.in:
		return m.binary, m.data, nil
	default:
	}
	e.mine.close(0, "")
	if e.theirs.code == 0 {
		return false, nil, errPipe
	}
	return false, nil, &protocol.CloseError{Code: e.theirs.code, Reason: e.theirs.reason}
}

func (e *end) Write(_ context.Context, binary bool, data []byte) error {
	if e.gate != nil && !e.gate(binary, data) {
		return nil
	}
	m := message{binary: binary, data: bytes.Clone(data)}
	select {
	case <-e.mine.done:
		return errPipe
	default:
	}
	select {
	case e.out <- m:
		e.written.Add(1)
		return nil
	case <-e.mine.done:
		return errPipe
	case <-e.theirs.told:
		return errPipe
	}
}

func (e *end) Close(code int, reason string) error {
	e.mine.close(code, reason)
	return nil
}

type handlerFunc func(ctx context.Context, req *protocol.Request, progress func(string)) *protocol.Response

func (f handlerFunc) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	return f(ctx, req, w.Progress)
}

// echo answers with the arguments.
var echo = handlerFunc(func(_ context.Context, req *protocol.Request, _ func(string)) *protocol.Response {
	return &protocol.Response{Result: req.Args}
})

// running is a session that runs, and its end.
type running struct {
	*mux.Session
	done chan struct{}
	err  error // read after done
}

func run(p mux.Pipe, cfg mux.Config) *running {
	r := &running{Session: mux.New(p, cfg), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = r.Run(context.Background())
	}()
	return r
}

func (r *running) wait(t testing.TB) error {
	t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(2 * time.Minute):
		t.Fatal("the session didn't end")
		return nil
	}
}

// pair runs a server's and an agent's session over one pipe, to the test's end.
func pair(t testing.TB, server, agent mux.Config) (*running, *running) {
	t.Helper()
	a, b := newPipe(4)
	if agent.Handler == nil {
		agent.Handler = echo
	}
	s, h := run(a, server), run(b, agent)
	t.Cleanup(func() {
		s.Close(protocol.CloseNormal, "test over")
		s.wait(t)
		h.wait(t)
	})
	return s, h
}

var lastID atomic.Int64

func request(args string) *protocol.Request {
	return &protocol.Request{ID: fmt.Sprintf("call-%d", lastID.Add(1)), Tool: "shell_exec", Args: []byte(args), Seal: protocol.B64(make([]byte, 32)),
		Caller: protocol.Caller{Principal: "pat:1", User: "ann", Kind: "pat"}, DeadlineMS: 60_000}
}

// raw drives one end by hand.
type raw struct {
	t testing.TB
	*end
}

func (r raw) text(s string) {
	r.t.Helper()
	if err := r.Write(context.Background(), false, []byte(s)); err != nil {
		r.t.Fatalf("write: %v", err)
	}
}

func (r raw) frame(v any) {
	r.t.Helper()
	b, err := protocol.Encode(v)
	if err != nil {
		r.t.Fatal(err)
	}
	r.text(string(b))
}

func (r raw) chunk(stream uint32, flags byte, payload []byte) {
	r.t.Helper()
	b := append([]byte{byte(stream >> 24), byte(stream >> 16), byte(stream >> 8), byte(stream), flags}, payload...)
	if err := r.Write(context.Background(), true, b); err != nil {
		r.t.Fatalf("write: %v", err)
	}
}

// read returns the next frame, keep-alive left out.
func (r raw) read() any {
	r.t.Helper()
	for {
		bin, b, err := r.Read(context.Background())
		if err != nil {
			r.t.Fatalf("read: %v", err)
		}
		if bin {
			return b
		}
		v, err := protocol.Decode(b)
		if err != nil {
			r.t.Fatalf("decode %s: %v", b, err)
		}
		if _, ok := v.(*protocol.Ping); !ok {
			return v
		}
	}
}
