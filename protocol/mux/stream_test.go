package mux_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

type workFunc func(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response

func (f workFunc) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	return f(ctx, req, w)
}

func failed(err error) *protocol.Response {
	return &protocol.Response{Error: &protocol.Error{Code: protocol.CodeToolFailed, Reason: "io", Message: err.Error()}}
}

func fine(format string, args ...any) *protocol.Response {
	return &protocol.Response{Result: fmt.Appendf(nil, format, args...)}
}

// mirror sends back what it gets, and tells the sum.
var mirror = workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
	in, size, err := w.In(ctx)
	if err != nil {
		return failed(err)
	}
	out, err := w.Out(size)
	if err != nil {
		return failed(err)
	}
	h := sha256.New()
	if _, err := io.Copy(out, io.TeeReader(in, h)); err != nil {
		return failed(err)
	}
	if err := out.Close(); err != nil {
		return failed(err)
	}
	return fine(`"%x"`, h.Sum(nil))
})

// pattern is a file of n bytes in which no two chunks are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17
	}
	return b
}

func TestFilesArriveWhole(t *testing.T) {
	s, h := pair(t, mux.Config{}, mux.Config{Handler: mirror})
	for _, n := range []int{0, 1, protocol.MaxChunk - 1, protocol.MaxChunk, protocol.InitialCredit, protocol.InitialCredit + 1, 1<<20 + 7, 12 << 20} {
		for _, known := range []bool{true, false} {
			body, size := pattern(n), int64(n)
			if !known {
				size = -1
			}
			var sink bytes.Buffer
			resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Body: bytes.NewReader(body), Size: size, Sink: &sink})
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if want := fmt.Sprintf(`"%x"`, sha256.Sum256(body)); resp.Error != nil || string(resp.Result) != want {
				t.Errorf("%d bytes, known %t: %v %s", n, known, resp.Error, resp.Result)
			}
			if !bytes.Equal(sink.Bytes(), body) {
				t.Errorf("%d bytes, known %t: %d came back", n, known, sink.Len())
			}
		}
	}
	if !s.Alive() || !h.Alive() || s.Open() != 0 || h.Open() != 0 {
		t.Error("something is left open")
	}
}

// The readers hand over bytes in pieces of any size.
func TestFilesInOddPieces(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		in, _, err := w.In(ctx)
		if err != nil {
			return failed(err)
		}
		out, err := w.Out(-1)
		if err != nil {
			return failed(err)
		}
		buf := make([]byte, 777)
		for {
			n, err := in.Read(buf)
			if _, err := out.Write(buf[:n/2]); err != nil {
				return failed(err)
			}
			if _, err := out.Write(buf[n/2 : n]); err != nil {
				return failed(err)
			}
			if err == io.EOF {
				return map[bool]*protocol.Response{true: fine(`{}`)}[out.Close() == nil]
			}
			if err != nil {
				return failed(err)
			}
		}
	})})
	body := pattern(300_001)
	var sink bytes.Buffer
	resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Body: io.LimitReader(&slowPieces{b: body}, int64(len(body))), Size: int64(len(body)), Sink: &sink})
	if err != nil || resp.Error != nil || !bytes.Equal(sink.Bytes(), body) {
		t.Errorf("%v %+v, %d bytes", err, resp, sink.Len())
	}
}

// slowPieces gives one to 5,000 bytes at a time.
type slowPieces struct {
	b []byte
	n int
}

func (s *slowPieces) Read(p []byte) (int, error) {
	s.n = (s.n*7 + 1) % 5000
	n := copy(p[:min(len(p), s.n+1)], s.b)
	s.b = s.b[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

type failingReader struct{ n int }

func (r *failingReader) Read(p []byte) (int, error) {
	if r.n <= 0 {
		return 0, errors.New("the disk is gone")
	}
	n := min(len(p), r.n)
	r.n -= n
	return n, nil
}

func TestBodiesThatAreNotWhole(t *testing.T) {
	read := make(chan error, 1)
	s, h := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		in, _, err := w.In(ctx)
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		read <- err
		if err != nil {
			return failed(err)
		}
		return fine(`{}`)
	})})
	for name, x := range map[string]mux.Exchange{
		"fails at once": {Body: &failingReader{0}, Size: 10}, "fails later": {Body: &failingReader{300_000}, Size: 400_000}, "fails at its end": {Body: &failingReader{10}, Size: 10},
		"fails, size unknown": {Body: &failingReader{300_000}, Size: -1}, "shorter": {Body: strings.NewReader("abc"), Size: 4}, "longer": {Body: strings.NewReader("abcde"), Size: 4},
		"not empty": {Body: strings.NewReader("a"), Size: 0}, "much longer": {Body: bytes.NewReader(pattern(300_000)), Size: 200_000},
	} {
		resp, err := s.Call(t.Context(), request(`{}`), x)
		if err != nil || resp.Error == nil {
			t.Errorf("%s: %+v %v", name, resp, err)
		}
		if err := <-read; !errors.Is(err, mux.ErrReset) {
			t.Errorf("%s: the agent read %v", name, err)
		}
	}
	if !s.Alive() || !h.Alive() {
		t.Error("a session ended")
	}
}

func TestStreamsThatTheAgentDoesNotFinish(t *testing.T) {
	todo := map[string]func(u mux.Upstream){
		"left open":   func(u mux.Upstream) { _, _ = u.Write(pattern(200_000)) },
		"not written": func(mux.Upstream) {},
		"reset":       func(u mux.Upstream) { _, _ = u.Write([]byte("abc")); u.Reset() },
		"shorter": func(u mux.Upstream) {
			_, _ = u.Write([]byte("abc"))
			if u.Close() == nil {
				panic("a short file was closed")
			}
		},
		"longer": func(u mux.Upstream) {
			_, _ = u.Write(make([]byte, 200_000))
			if _, err := u.Write([]byte("x")); err == nil {
				panic("a long file was written")
			}
			if u.Close() == nil {
				panic("a long file was closed")
			}
		},
	}
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(_ context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
		u, err := w.Out(200_000)
		if err != nil {
			return failed(err)
		}
		todo[r.Tool](u)
		return fine(`"all is well"`)
	})})
	for name := range todo {
		r := request(`{}`)
		r.Tool = name
		resp, err := s.Call(t.Context(), r, mux.Exchange{Sink: io.Discard})
		if err != nil || resp.Error == nil || string(resp.Result) != `"all is well"` {
			t.Errorf("%s: %+v %v", name, resp, err)
		}
	}
}

// An agent that lies about the end of its stream is found out on the server's side, too.
func TestAResetFileIsNoSuccess(t *testing.T) {
	a, b := newPipe(16)
	s, peer := run(a, mux.Config{}), raw{t, b}
	defer func() { s.Close(0, ""); s.wait(t) }()
	r := request(`{}`)
	go func() {
		peer.read()
		peer.frame(&protocol.Open{Type: "open", Stream: 2, Kind: "file", ID: r.ID, Size: 100})
		peer.chunk(2, 0, make([]byte, 50))
		peer.chunk(2, protocol.FlagReset, nil)
		peer.frame(&protocol.Response{ID: r.ID, Result: []byte(`"fine"`)})
	}()
	resp, err := s.Call(t.Context(), r, mux.Exchange{Sink: io.Discard})
	if err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeToolFailed || resp.Error.Reason != "io" {
		t.Errorf("%+v %v", resp, err)
	}
}

// gated is a Sink that waits before each Write.
type gated struct {
	gate chan struct{}
	n    atomic.Int64
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.gate
	g.n.Add(int64(len(p)))
	return len(p), nil
}

// The response is there long before the sink has taken everything; Call waits for that.
func TestResponseComesAfterTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		sent := make(chan struct{})
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(_ context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
			u, _ := w.Out(50_000)
			_, _ = u.Write(pattern(50_000))
			_ = u.Close()
			close(sent)
			return fine(`{}`)
		})})
		sink := &gated{gate: make(chan struct{})}
		returned := make(chan *protocol.Response, 1)
		go func() {
			resp, _ := s.Call(context.Background(), request(`{}`), mux.Exchange{Sink: sink})
			returned <- resp
		}()
		<-sent
		synctest.Wait()
		if h.Open() != 0 || len(returned) != 0 {
			t.Fatalf("the agent has %d open, the call has returned: %t", h.Open(), len(returned) == 1)
		}
		close(sink.gate)
		if resp := <-returned; resp == nil || resp.Error != nil || sink.n.Load() != 50_000 {
			t.Errorf("%+v, %d bytes", resp, sink.n.Load())
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

// A slow sink holds up its own stream within the window, and nothing else: not other calls,
// not another file, not a long answer.
func TestASlowSinkHoldsUpNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		written := make(chan int, 1)
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(_ context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
			if r.Tool == "long" {
				return fine(`"%s"`, strings.Repeat("x", 3<<20))
			}
			u, _ := w.Out(-1)
			n := 0
			for range 1 << 10 {
				m, err := u.Write(make([]byte, 16<<10))
				if n += m; err != nil {
					break
				}
			}
			if r.Tool == "stuck" {
				written <- n
			}
			_ = u.Close()
			return fine(`{}`)
		})})
		ctx, cancel := context.WithCancelCause(context.Background())
		stuck := &gated{gate: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			r := request(`{}`)
			r.Tool = "stuck"
			resp, err := s.Call(ctx, r, mux.Exchange{Sink: stuck})
			if err == nil && resp.Error != nil {
				err = resp.Error
			}
			ended <- err
		}()
		synctest.Wait()
		var other bytes.Buffer
		if resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Sink: &other}); err != nil || resp.Error != nil || other.Len() != 16<<20 {
			t.Errorf("another file: %+v %v, %d bytes", resp, err, other.Len())
		}
		long := request(`{}`)
		long.Tool = "long"
		if resp, err := s.Call(t.Context(), long, mux.Exchange{}); err != nil || len(resp.Result) < 3<<20 {
			t.Errorf("a long answer: %v", err)
		}
		cancel(errors.New("enough"))
		if n := <-written; n > 64<<10+128<<10 { // a window, and what Write keeps
			t.Errorf("%d bytes were written into a sink that takes none", n)
		}
		synctest.Wait()
		close(stuck.gate)
		var pe *protocol.Error
		if err := <-ended; !errors.As(err, &pe) || pe.Code != protocol.CodeCancelled {
			t.Errorf("the cancelled call: %v", err)
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

type failingSink struct{ left int }

func (f *failingSink) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errors.New("the browser went away")
	}
	return len(p), nil
}

func TestAFailingSinkCancelsTheCall(t *testing.T) {
	causes := make(chan error, 2)
	s, h := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		u, err := w.Out(-1)
		for err == nil {
			_, err = u.Write(make([]byte, 10_000))
		}
		causes <- err
		causes <- context.Cause(ctx)
		return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "dead")}
	})})
	resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Sink: &failingSink{300_000}})
	if err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeCancelled {
		t.Errorf("%+v %v", resp, err)
	}
	for range 2 {
		var ce *mux.CancelError
		if err := <-causes; !errors.As(err, &ce) || !strings.Contains(ce.Reason, "the browser went away") {
			t.Errorf("the agent saw %v", err)
		}
	}
	if resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Sink: &failingSink{}}); err != nil || resp.Error == nil {
		t.Errorf("%+v %v", resp, err)
	}
	if !s.Alive() || !h.Alive() || s.Stats() != (mux.Stats{}) {
		t.Errorf("alive %t %t, %+v", s.Alive(), h.Alive(), s.Stats())
	}
}

// The sink fails with the last bytes, when the response is on its way or there.
func TestASinkThatFailsAtTheEnd(t *testing.T) {
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(_ context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		u, _ := w.Out(3)
		_, _ = u.Write([]byte("abc"))
		_ = u.Close()
		return fine(`{}`)
	})})
	for range 20 {
		resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Sink: &failingSink{}})
		if err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeCancelled {
			t.Fatalf("%+v %v", resp, err)
		}
	}
}

// A cancel ends what the agent reads and writes, and the body.
func TestCancelEndsStreams(t *testing.T) {
	for _, way := range []string{"in", "out"} {
		t.Run(way, func(t *testing.T) {
			stuck, ended := make(chan struct{}), make(chan error, 1)
			s, h := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
				var err error
				if way == "in" {
					in, _, ierr := w.In(ctx)
					if ierr != nil {
						return failed(ierr)
					}
					_, _ = io.ReadFull(in, make([]byte, 10))
					close(stuck)
					_, err = in.Read(make([]byte, 10))
				} else {
					u, _ := w.Out(-1)
					_, _ = u.Write(make([]byte, 64<<10))
					close(stuck)
					for err == nil {
						_, err = u.Write(make([]byte, 64<<10))
					}
				}
				ended <- err
				return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "dead")}
			})})
			ctx, cancel := context.WithCancelCause(t.Context())
			hold, write := io.Pipe()
			go func() {
				_, _ = write.Write(make([]byte, 10))
				<-stuck
				cancel(errors.New("no longer"))
			}()
			x := mux.Exchange{Body: hold, Size: -1}
			if way == "out" {
				g := &gated{gate: make(chan struct{})}
				context.AfterFunc(ctx, func() { close(g.gate) })
				x = mux.Exchange{Sink: g}
				go func() { <-stuck; cancel(errors.New("no longer")) }()
			}
			resp, err := s.Call(ctx, request(`{}`), x)
			if err != nil || resp.Error == nil || resp.Error.Code != protocol.CodeCancelled {
				t.Errorf("%+v %v", resp, err)
			}
			var ce *mux.CancelError
			if err := <-ended; !errors.As(err, &ce) {
				t.Errorf("the agent saw %v", err)
			}
			if !s.Alive() || !h.Alive() {
				t.Error("a session ended")
			}
			_ = hold.Close()
		})
	}
}

// A capability has a deadline of its own, of which the session knows nothing.
func TestACapabilityEndsItsOwnStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("the call's time has passed")
		a, b := newPipe(4)
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(ctx context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Second, late)
			defer cancel()
			var err error
			if r.Tool == "out" {
				u, oerr := w.Out(-1)
				if oerr != nil {
					return failed(oerr)
				}
				context.AfterFunc(ctx, u.Reset)
				for err == nil {
					_, err = u.Write(make([]byte, 64<<10))
				}
				return failed(context.Cause(ctx))
			}
			in, _, err := w.In(ctx)
			if err == nil {
				_, err = io.Copy(io.Discard, in)
			}
			return failed(err)
		})})
		hold, write := io.Pipe()
		sink := &gated{gate: make(chan struct{})}
		time.AfterFunc(2*time.Second, func() { close(sink.gate) })
		for _, c := range []struct {
			tool string
			x    mux.Exchange
		}{{"out", mux.Exchange{Sink: sink}}, {"no body", mux.Exchange{}}, {"a body that hangs", mux.Exchange{Body: hold, Size: -1}}} {
			resp, err := s.Call(context.Background(), tool(c.tool), c.x)
			if err != nil || resp.Error == nil || resp.Error.Message != late.Error() {
				t.Errorf("%s: %+v %v", c.tool, resp, err)
			}
		}
		_ = write.Close()
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

func TestACutEndsStreams(t *testing.T) {
	ended := make(chan error, 2)
	a, b := newPipe(4)
	s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		in, _, err := w.In(ctx)
		if err != nil {
			return failed(err)
		}
		u, err := w.Out(-1)
		if err != nil {
			return failed(err)
		}
		_, err = io.Copy(u, in)
		ended <- err
		_, err = u.Write([]byte("x"))
		ended <- err
		return failed(err)
	})})
	n := 0
	sink := writerFunc(func(p []byte) (int, error) {
		if n += len(p); n > 500_000 {
			_ = b.Close(0, "")
		}
		return len(p), nil
	})
	_, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Body: zeros{}, Size: -1, Sink: sink})
	if !errors.Is(err, protocol.ErrCut) {
		t.Errorf("the call ended with %v", err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, protocol.ErrCut) {
			t.Errorf("the agent saw %v", err)
		}
	}
	s.wait(t)
	h.wait(t)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// What the agent doesn't read is dropped when its call ends, and hurts nobody.
func TestABodyThatNobodyReads(t *testing.T) {
	s, h := pair(t, mux.Config{}, mux.Config{MaxCalls: 1, Handler: workFunc(func(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
		return fine(`"no, thanks"`)
	})})
	for range 50 {
		resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Body: zeros{}, Size: -1})
		if err != nil || string(resp.Result) != `"no, thanks"` {
			t.Fatalf("%+v %v", resp, err)
		}
	}
	if !s.Alive() || !h.Alive() {
		t.Error("a session ended")
	}
}

// The body of a call that's refused by the session itself comes for a call that never ran.
func TestABodyForABusyAgent(t *testing.T) {
	release, started := make(chan struct{}), make(chan struct{})
	s, h := pair(t, mux.Config{}, mux.Config{MaxCalls: 1, Handler: workFunc(func(_ context.Context, r *protocol.Request, _ *mux.Work) *protocol.Response {
		close(started)
		<-release
		return fine(`{}`)
	})})
	first := make(chan error, 1)
	go func() { _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{}); first <- err }()
	<-started
	for range 20 {
		resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Body: zeros{}, Size: -1})
		if err != nil || resp.Error == nil || resp.Error.Reason != protocol.ReasonBusy {
			t.Fatalf("%+v %v", resp, err)
		}
	}
	close(release)
	if err := <-first; err != nil || !s.Alive() || !h.Alive() {
		t.Error(err)
	}
}

// A file that comes for a call which the server gave up, or left, is dropped; the second is
// too many.
func TestAFileForACallThatWasGivenUp(t *testing.T) {
	for _, cause := range []error{errors.New("enough"), mux.ErrDetached} {
		synctest.Test(t, func(t *testing.T) {
			a, b := newPipe(16)
			s, peer := run(a, mux.Config{}), raw{t, b}
			ctx, cancel := context.WithCancelCause(context.Background())
			r := request(`{}`)
			ended := make(chan error, 1)
			go func() { _, err := s.Call(ctx, r, mux.Exchange{Sink: io.Discard}); ended <- err }()
			peer.read()
			cancel(cause)
			want := mux.ErrDetached
			if cause != mux.ErrDetached {
				peer.read() // the cancel
				want = protocol.ErrNoAnswer
			}
			if err := <-ended; !errors.Is(err, want) {
				t.Fatal(err)
			}
			peer.frame(&protocol.Open{Type: "open", Stream: 2, Kind: "file", ID: r.ID, Size: -1})
			for range 8 {
				peer.chunk(2, 0, make([]byte, 8<<10))
			}
			if c, ok := peer.read().(*protocol.Credit); !ok || c.Stream != 2 {
				t.Errorf("no credit for what is dropped: %+v", c)
			}
			peer.chunk(2, protocol.FlagEnd, nil)
			synctest.Wait()
			if !s.Alive() {
				t.Fatal("the session ended")
			}
			peer.frame(&protocol.Open{Type: "open", Stream: 4, Kind: "file", ID: r.ID, Size: -1})
			var v *mux.Violation
			if err := s.wait(t); !errors.As(err, &v) {
				t.Errorf("a second one: %v", err)
			}
		})
	}
}

func TestVersion1HasNoFiles(t *testing.T) {
	asked := make(chan error, 2)
	s, _ := pair(t, mux.Config{Version: 1}, mux.Config{Version: 1, Handler: workFunc(func(ctx context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		_, _, err := w.In(ctx)
		asked <- err
		_, err = w.Out(1)
		asked <- err
		return fine(`{}`)
	})})
	var pe *protocol.Error
	for _, x := range []mux.Exchange{{Body: strings.NewReader("x"), Size: 1}, {Sink: io.Discard}} {
		if _, err := s.Call(t.Context(), request(`{}`), x); !errors.Is(err, protocol.ErrNotSent) || !errors.As(err, &pe) || pe.Code != protocol.CodeUnsupported {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); err != nil {
		t.Error(err)
	}
	if err := <-asked; err == nil {
		t.Error("a stream in")
	}
	if err := <-asked; err == nil {
		t.Error("a stream out")
	}
}

func TestOutOnceAndNotLater(t *testing.T) {
	kept := make(chan *mux.Work, 1)
	s, _ := pair(t, mux.Config{}, mux.Config{Handler: workFunc(func(_ context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
		u, err := w.Out(0)
		if err != nil {
			return failed(err)
		}
		if _, err := w.Out(0); err == nil {
			return failed(errors.New("a second stream"))
		}
		if err := u.Close(); err != nil {
			return failed(err)
		}
		if _, err := u.Write([]byte("x")); err == nil || u.Close() == nil {
			return failed(errors.New("written after the end"))
		}
		kept <- w
		return fine(`{}`)
	})})
	if resp, err := s.Call(t.Context(), request(`{}`), mux.Exchange{Sink: io.Discard}); err != nil || resp.Error != nil {
		t.Fatalf("%+v %v", resp, err)
	}
	w := <-kept
	if _, err := w.Out(1); err == nil {
		t.Error("a stream after the call")
	}
	if _, _, err := w.In(t.Context()); err == nil {
		t.Error("a body after the call")
	}
}

// More calls with files than may run at once: they wait for each other, and all end well.
func TestManyFilesAtOnce(t *testing.T) {
	s, h := pair(t, mux.Config{}, mux.Config{Handler: mirror})
	errs := make(chan error, 2*protocol.MaxFiles)
	for i := range cap(errs) {
		go func() {
			body := pattern(100_000 + i)
			var sink bytes.Buffer
			resp, err := s.Call(context.Background(), request(`{}`), mux.Exchange{Body: bytes.NewReader(body), Size: int64(len(body)), Sink: &sink})
			switch {
			case err != nil:
			case resp.Error != nil:
				err = resp.Error
			case !bytes.Equal(sink.Bytes(), body):
				err = errors.New("another file came back")
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if s.Open()+h.Open() != 0 {
		t.Error("something is left open")
	}
}

// TestAnsweredTellsThatTheResponseIsOut: once it was written, short or long, or never will be.
func TestAnsweredTellsThatTheResponseIsOut(t *testing.T) {
	for name, size := range map[string]int{"short": 10, "long": protocol.MaxMessage + 1} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", cut: ", cut), func(t *testing.T) {
				a, b := newPipe(16)
				held, free := make(chan struct{}), make(chan struct{})
				hold := sync.OnceFunc(func() { close(held); <-free })
				var answers atomic.Bool
				b.gate = func(binary bool, data []byte) bool {
					if answers.Load() && (binary || bytes.Contains(data, []byte(`"response"`))) {
						hold()
					}
					return true
				}
				out := make(chan struct{})
				s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(_ context.Context, _ *protocol.Request, w *mux.Work) *protocol.Response {
					w.Answered(func() { close(out) })
					answers.Store(true)
					return &protocol.Response{Result: []byte(`"` + strings.Repeat("x", size) + `"`)}
				})})
				end := make(chan error, 1)
				go func() { _, err := s.Call(t.Context(), request(`{}`), mux.Exchange{}); end <- err }()
				<-held
				select {
				case <-out:
					t.Error("it's told before the response is out")
				default:
				}
				if cut {
					h.Close(0, "")
					<-out
				}
				close(free)
				<-out
				if err := <-end; err != nil && !cut {
					t.Error(err)
				}
				s.Close(0, "")
				s.wait(t)
				h.wait(t)
			})
		}
	}
}
