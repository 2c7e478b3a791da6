package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// With as many calls as may run, none of whose sinks takes anything, the server keeps no more
// than it says; one call more waits, and a plain one doesn't.
func TestWhatAServerKeepsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(4)
		var written atomic.Int64
		s, h := run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(_ context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
			if r.Tool == "plain" {
				return fine(`{}`)
			}
			u, err := w.Out(-1)
			for n := 0; err == nil; written.Add(int64(n)) {
				n, err = u.Write(make([]byte, 1000))
			}
			return failed(err)
		})})
		stuck := &gated{gate: make(chan struct{})}
		ended := make(chan error, protocol.MaxFiles+1)
		for range cap(ended) {
			go func() { _, err := s.Call(context.Background(), request(`{}`), mux.Exchange{Sink: stuck}); ended <- err }()
		}
		synctest.Wait()
		if h.Open() != protocol.MaxFiles {
			t.Errorf("%d calls with files run", h.Open())
		}
		const ahead = 128 << 10 // what a Write keeps
		if n := written.Load(); n < protocol.MaxFiles*protocol.InitialCredit || n > protocol.MaxKept+protocol.MaxFiles*ahead {
			t.Errorf("%d bytes were written", n)
		}
		plain := request(`{}`)
		plain.Tool = "plain"
		if resp, err := s.Call(t.Context(), plain, mux.Exchange{}); err != nil || resp.Error != nil {
			t.Errorf("a plain call: %+v %v", resp, err)
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
		close(stuck.gate)
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, protocol.ErrCut) && !errors.Is(err, protocol.ErrNotSent) {
				t.Error(err)
			}
		}
	})
}

func TestDetachedStreams(t *testing.T) {
	if _, _, err := mux.Detached(nil).In(t.Context()); err == nil {
		t.Error("a stream in")
	}
	if _, err := mux.Detached(nil).Out(1); err == nil {
		t.Error("a stream out")
	}
	var out bytes.Buffer
	w := mux.DetachedStreams(nil, strings.NewReader("abc"), 3, &out)
	w.Progress("nobody hears it")
	in, size, err := w.In(t.Context())
	if b, rerr := io.ReadAll(in); err != nil || rerr != nil || size != 3 || string(b) != "abc" {
		t.Errorf("%q %d %v %v", b, size, err, rerr)
	}
	u, err := w.Out(4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Write([]byte("abc")); err != nil {
		t.Error(err)
	}
	if u.Close() == nil {
		t.Error("a short file was closed")
	}
	if out.String() != "abc" {
		t.Errorf("%q", out.String())
	}
}

// BenchmarkStream is a file to the agent over a pipe in memory.
func BenchmarkStream(b *testing.B) {
	for _, way := range []string{"to_host", "from_host"} {
		b.Run(way, func(b *testing.B) {
			const size = 64 << 20
			s, _ := pair(b, mux.Config{}, mux.Config{Handler: workFunc(func(ctx context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
				var err error
				if r.Tool == "to_host" {
					var in io.Reader
					if in, _, err = w.In(ctx); err == nil {
						_, err = io.Copy(io.Discard, in)
					}
				} else {
					var u mux.Upstream
					if u, err = w.Out(size); err == nil {
						_, err = io.Copy(u, io.LimitReader(zeros{}, size))
					}
					if err == nil {
						err = u.Close()
					}
				}
				if err != nil {
					return failed(err)
				}
				return fine(`{}`)
			})})
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				r := request(`{}`)
				r.Tool = way
				x := mux.Exchange{Sink: io.Discard}
				if way == "to_host" {
					x = mux.Exchange{Body: io.LimitReader(zeros{}, size), Size: size}
				}
				if resp, err := s.Call(b.Context(), r, x); err != nil || resp.Error != nil {
					b.Fatalf("%+v %v", resp, err)
				}
			}
		})
	}
}
