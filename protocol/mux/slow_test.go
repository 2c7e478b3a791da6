package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// way is one direction of a link: so many bytes a second, each arriving after a delay. It
// takes 16 MiB more than what is under way, as a proxy may: what's sent early waits there.
type way struct {
	*end
	rate  atomic.Int64
	delay time.Duration
	queue chan parcel
	free  time.Time // when all that was written has left
}

type parcel struct {
	message
	at time.Time
}

// newLink makes a pipe over a link of so many bits a second each way. It's for a bubble.
func newLink(bits int64, delay time.Duration) (*way, *way) {
	a, b := newPipe(0)
	var both [2]*way
	for i, e := range []*end{a, b} {
		w := &way{end: e, delay: delay, queue: make(chan parcel, 1<<16)}
		w.rate.Store(bits / 8)
		go w.carry()
		both[i] = w
	}
	return both[0], both[1]
}

func (w *way) carry() {
	for {
		select {
		case p := <-w.queue:
			w.sleep(time.Until(p.at))
			if w.end.Write(context.Background(), p.binary, p.data) != nil {
				return
			}
		case <-w.mine.done:
			return
		case <-w.theirs.told:
			return
		}
	}
}

func (w *way) Write(_ context.Context, binary bool, data []byte) error {
	select {
	case <-w.mine.done:
		return errPipe
	default:
	}
	took := time.Duration(int64(len(data)+60) * int64(time.Second) / w.rate.Load())
	if now := time.Now(); w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(took)
	w.queue <- parcel{message{binary, bytes.Clone(data)}, w.free.Add(w.delay)}
	buffered := time.Duration(int64(16<<20) * int64(time.Second) / w.rate.Load())
	w.sleep(time.Until(w.free) - buffered)
	return nil
}

// sleep ends early when this end is closed or hears that the other one is.
func (w *way) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.mine.done:
	case <-w.theirs.told:
	}
}

// served runs both ends over a link, with a handler that takes or gives a file, or echoes.
func served(t *testing.T, size int64, a, b *way) (s, h *running) {
	s, h = run(a, mux.Config{}), run(b, mux.Config{Handler: workFunc(func(ctx context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
		switch r.Tool {
		case "take":
			in, _, err := w.In(ctx)
			if err == nil {
				_, err = io.Copy(io.Discard, in)
			}
			if err != nil {
				return failed(err)
			}
		case "give":
			u, err := w.Out(size)
			if err == nil {
				_, err = io.Copy(u, io.LimitReader(zeros{}, size))
			}
			if err == nil {
				err = u.Close()
			}
			if err != nil {
				return failed(err)
			}
		}
		return fine(`{}`)
	})})
	time.Sleep(2 * time.Second) // by now both know how long the way is
	return s, h
}

func tool(name string) *protocol.Request {
	r := request(`{}`)
	r.Tool = name
	return r
}

func exchange(tool string, size int64) mux.Exchange {
	if tool == "take" {
		return mux.Exchange{Body: io.LimitReader(zeros{}, size), Size: size}
	}
	return mux.Exchange{Sink: io.Discard}
}

// slowest makes a small call every five seconds until done, and tells the longest.
func slowest(t *testing.T, s *running, done <-chan error) (longest time.Duration, calls int) {
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the transfer: %v", err)
			}
			return longest, calls
		case <-time.After(5 * time.Second):
		}
		began := time.Now()
		if resp, err := s.Call(context.Background(), tool("echo"), mux.Exchange{}); err != nil || resp.Error != nil {
			t.Errorf("a small call: %+v %v", resp, err)
			return longest, calls
		}
		longest = max(longest, time.Since(began))
		calls++
	}
}

func transfer(s *running, name string, size int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		resp, err := s.Call(context.Background(), tool(name), exchange(name, size))
		if err == nil && resp.Error != nil {
			err = resp.Error
		}
		done <- err
	}()
	return done
}

// 50 MB through 1 Mbit/s and 300 ms: small calls stay quick, and the link is used.
func TestSmallCallsBesideATransferOnASlowLink(t *testing.T) {
	const size = 50_000_000
	for _, name := range []string{"take", "give"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newLink(1_000_000, 300*time.Millisecond)
				s, h := served(t, size, a, b)
				began := time.Now()
				longest, calls := slowest(t, s, transfer(s, name, size))
				took := time.Since(began)
				t.Logf("%s took %s; the longest of %d calls %s", name, took, calls, longest)
				if longest >= 3*time.Second || calls < 50 {
					t.Errorf("the longest of %d calls took %s", calls, longest)
				}
				if ideal := size * 8 * time.Second / 1_000_000; took > ideal*5/4 {
					t.Errorf("took %s; the link could in %s", took, ideal)
				}
				s.Close(0, "")
				s.wait(t)
				h.wait(t)
			})
		})
	}
}

// Several at once, both ways, on the same link.
func TestSmallCallsBesideManyTransfersOnASlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2_000_000
		a, b := newLink(1_000_000, 150*time.Millisecond)
		s, h := served(t, size, a, b)
		done := make(chan error, 1)
		var all []<-chan error
		for range 5 {
			all = append(all, transfer(s, "take", size), transfer(s, "give", size))
		}
		go func() {
			var errs []error
			for _, c := range all {
				errs = append(errs, <-c)
			}
			done <- errors.Join(errs...)
		}()
		longest, calls := slowest(t, s, done)
		t.Logf("the longest of %d calls %s", calls, longest)
		if longest > 6*time.Second || calls < 10 {
			t.Errorf("the longest of %d calls took %s", calls, longest)
		}
		s.Close(0, "")
		s.wait(t)
		h.wait(t)
	})
}

// On a fast link that is long, the window is the limit, and grows until it isn't.
func TestWindowsGrowOnALongLink(t *testing.T) {
	for _, name := range []string{"take", "give"} {
		synctest.Test(t, func(t *testing.T) {
			const size = 100_000_000 // 8 s at 100 Mbit/s; 312 s with 64 KiB in flight
			a, b := newLink(100_000_000, 100*time.Millisecond)
			s, h := served(t, size, a, b)
			began := time.Now()
			longest, _ := slowest(t, s, transfer(s, name, size))
			took := time.Since(began)
			t.Logf("%s took %s, the longest call %s", name, took, longest)
			if took > 25*time.Second {
				t.Errorf("%s took %s", name, took)
			}
			if longest > time.Second {
				t.Errorf("a call beside %s took %s", name, longest)
			}
			s.Close(0, "")
			s.wait(t)
			h.wait(t)
		})
	}
}

// A link that becomes slow during a transfer: the windows become smaller again.
func TestWindowsShrinkWhenTheLinkDoes(t *testing.T) {
	for _, name := range []string{"take", "give"} {
		synctest.Test(t, func(t *testing.T) {
			const size = 60_000_000
			a, b := newLink(100_000_000, 50*time.Millisecond)
			s, h := served(t, size, a, b)
			done := transfer(s, name, size)
			time.Sleep(3 * time.Second)
			a.rate.Store(1_000_000 / 8)
			b.rate.Store(1_000_000 / 8)
			time.Sleep(60 * time.Second) // what was under way arrives
			longest, calls := slowest(t, s, done)
			t.Logf("%s: the longest of %d calls %s", name, calls, longest)
			if longest >= 3*time.Second || calls < 10 {
				t.Errorf("beside %s the longest of %d calls took %s", name, calls, longest)
			}
			s.Close(0, "")
			s.wait(t)
			h.wait(t)
		})
	}
}
