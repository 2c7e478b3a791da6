package mux_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
)

// heard keeps the panics that a session was told of.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) panicked(call string, p *fault.Panic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, call+": "+p.What)
	if !strings.Contains(p.Stack, "fault_test.go") {
		h.all = append(h.all, "a stack without the place: "+p.Stack)
	}
}

func (h *heard) is(t *testing.T, want string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := strings.Join(h.all, "; "); got != want {
		t.Errorf("heard of %q, not of %q", got, want)
	}
}

// await waits until it has heard of anything.
func (h *heard) await(t *testing.T) {
	t.Helper()
	late := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		h.mu.Lock()
		n := len(h.all)
		h.mu.Unlock()
		if n > 0 {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("heard of nothing")
		}
	}
}

// faulty is a pipe that panics as it's told.
type faulty struct {
	mux.Pipe
	read, write, closed func()
}

func (f *faulty) Read(ctx context.Context) (bool, []byte, error) {
	bin, msg, err := f.Pipe.Read(ctx)
	if f.read != nil && err == nil {
		f.read()
	}
	return bin, msg, err
}

func (f *faulty) Write(ctx context.Context, bin bool, msg []byte) error {
	if f.write != nil {
		f.write()
	}
	return f.Pipe.Write(ctx, bin, msg)
}

func (f *faulty) Close(code int, reason string) error {
	err := f.Pipe.Close(code, reason)
	if f.closed != nil {
		f.closed()
	}
	return err
}

func boom() { panic("boom") }

// A panic of the connection's ends it as a cut does: whoever waits on it hears so, and the
// session ends in order.
func TestAPanicEndsItsConnection(t *testing.T) {
	facts := &protocol.FactsUpdate{Type: protocol.TypeFacts}
	for name, broken := range map[string]struct {
		pipe faulty
		cfg  mux.Config
	}{
		"what hears notices": {cfg: mux.Config{Notify: func(any) { boom() }}},
		"the pipe's reading": {pipe: faulty{read: boom}},
		"the pipe's writing": {pipe: faulty{write: boom}},
		"what hears the end": {cfg: mux.Config{Ended: func(error) { boom() }}},
		"the pipe's closing": {pipe: faulty{closed: boom}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPipe(4)
			var h heard
			broken.cfg.Panicked, broken.pipe.Pipe = h.panicked, a
			began := make(chan struct{}, 1)
			s, peer := run(&broken.pipe, broken.cfg), run(b, mux.Config{Handler: handlerFunc(func(ctx context.Context, _ *protocol.Request, _ func(string)) *protocol.Response {
				began <- struct{}{}
				<-ctx.Done()
				return nil
			})})
			called := make(chan error, 1)
			go func() {
				_, err := s.Call(context.Background(), request(`{}`), mux.Exchange{})
				called <- err
			}()
			if broken.pipe.read == nil && broken.pipe.write == nil { // these come to no call
				<-began
			}
			if broken.cfg.Notify != nil {
				_ = peer.Send(context.Background(), facts)
			}
			if broken.cfg.Ended != nil || broken.pipe.closed != nil {
				_ = b.Close(0, "")
			}
			if err := <-called; !errors.Is(err, protocol.ErrCut) && !errors.Is(err, protocol.ErrNotSent) {
				t.Errorf("the call ended with %v", err)
			}
			var p *fault.Panic
			if err := s.wait(t); broken.cfg.Ended == nil && broken.pipe.closed == nil && !errors.As(err, &p) {
				t.Errorf("the session ended with %v", err)
			}
			peer.wait(t)
			h.is(t, ": boom")
		})
	}
}

// A panic of a call's ends that call alone, and says that nobody knows how far it came.
func TestAPanicEndsItsCall(t *testing.T) {
	var h heard
	started, goOn := make(chan struct{}), make(chan struct{})
	s, _ := pair(t, mux.Config{}, mux.Config{Panicked: h.panicked, Handler: handlerFunc(func(_ context.Context, req *protocol.Request, _ func(string)) *protocol.Response {
		if string(req.Args) == `{"good":1}` {
			close(started)
			<-goOn
			return fine(`"fine"`)
		}
		panic("boom")
	})})
	good := make(chan *protocol.Response, 1)
	go func() {
		resp, err := s.Call(context.Background(), request(`{"good":1}`), mux.Exchange{})
		if err != nil {
			t.Error(err)
		}
		good <- resp
	}()
	<-started
	bad := request(`{"bad":1}`)
	resp, err := s.Call(t.Context(), bad, mux.Exchange{})
	if err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeOutcomeUnknown {
		t.Errorf("%+v %v", resp, err)
	}
	close(goOn)
	if resp := <-good; resp == nil || resp.Error != nil {
		t.Errorf("the other call: %+v", resp)
	}
	h.is(t, bad.ID+": boom")
}

// resumer answers as it's told.
type resumer struct {
	fates  func(ids []string) protocol.Resume
	rejoin func() *protocol.Response
}

func (r resumer) Fates(ids []string) protocol.Resume { return r.fates(ids) }

func (r resumer) Rejoin(context.Context, string, *mux.Work) *protocol.Response { return r.rejoin() }

func running1(ids []string) protocol.Resume {
	return protocol.Resume{States: []protocol.ResumeState{{ID: ids[0], State: protocol.FateRunning}}}
}

// A question after a call whose answer panics costs its connection nothing.
func TestAPanicOfAnAnswerAboutAnEarlierCall(t *testing.T) {
	for name, r := range map[string]resumer{
		"its fate":     {fates: func([]string) protocol.Resume { panic("boom") }},
		"its response": {fates: running1, rejoin: func() *protocol.Response { panic("boom") }},
	} {
		t.Run(name, func(t *testing.T) {
			var h heard
			s, _ := pair(t, mux.Config{}, mux.Config{Panicked: h.panicked, Resumer: r})
			ctx, cancel := context.WithCancelCause(t.Context())
			if r.rejoin == nil { // nobody answers: who asks gives up by itself
				cancel(mux.ErrDetached)
			}
			defer cancel(nil)
			_, resp, err := s.Resume(ctx, "earlier", mux.Exchange{})
			if r.rejoin != nil && (err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeOutcomeUnknown) {
				t.Errorf("%+v %v", resp, err)
			}
			if resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); err != nil || resp.Error != nil {
				t.Errorf("the connection's next call: %+v %v", resp, err)
			}
			if r.rejoin != nil {
				h.is(t, "earlier: boom")
			}
		})
	}
}

// The caller's ends of a file that panic fail their call, and a caller that panics itself has
// its ends back.
func TestAPanicOfAFilesEnd(t *testing.T) {
	var h heard
	s, _ := pair(t, mux.Config{Panicked: h.panicked}, mux.Config{Handler: mirror})
	r := request(`{}`)
	resp, err := s.Call(t.Context(), r, mux.Exchange{Body: readerFunc(func([]byte) (int, error) { panic("body") }), Size: 10, Sink: io.Discard})
	if err != nil || resp.Error == nil {
		t.Errorf("a body's panic: %+v %v", resp, err)
	}
	h.is(t, r.ID+": body")
	h.all = nil

	r = request(`{}`)
	resp, err = s.Call(t.Context(), r, mux.Exchange{Body: strings.NewReader("0123456789"), Size: 10, Sink: writerFunc(func([]byte) (int, error) { panic("sink") })})
	if err == nil && resp.Error == nil {
		t.Errorf("a sink's panic: %+v %v", resp, err)
	}
	h.is(t, r.ID+": sink")
	h.all = nil

	r = request(`{}`)
	ctx, cancel := context.WithCancel(t.Context())
	resp, err = s.Call(ctx, r, mux.Exchange{Body: strings.NewReader("0123456789"), Size: 10, Sink: writerFunc(func(p []byte) (int, error) {
		cancel()
		return len(p), nil
	}), Interrupt: func() { panic("interrupt") }})
	if err == nil && resp == nil {
		t.Errorf("an interruption's panic: %+v %v", resp, err)
	}
	h.await(t) // it's interrupted beside the call, whose end may come first
	h.is(t, r.ID+": interrupt")

	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("the connection: %v", err)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
