package link

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
)

// errWoke: this host was asleep, or this process stopped, and the connection didn't survive.
var errWoke = errors.New("this host was asleep, and the server didn't answer on the connection from before")

const (
	// lookEvery is how often the clocks are compared.
	lookEvery = 2 * time.Second
	// sleptFor is by how much the wall clock must have moved on beside it: less is a busy
	// machine. That a clock was set looks the same, and costs one ping.
	sleptFor = 4 * time.Second
	// wakeWait is how long the server has to answer a host that woke.
	wakeWait = 3 * time.Second
)

// wallClock is the time of day. Timers, and differences of times as time.Now gives them, go
// by a clock that stands still on most systems while the host is asleep.
func wallClock() time.Time { return time.Now().Round(0) }

// wakes tells of each time that this host was asleep. Timers don't notice: a connection
// that died meanwhile would be found only intervals later, and a pause would be waited out.
type wakes struct {
	wall  func() time.Time // wallClock; tests have their own
	every time.Duration    // lookEvery

	mu sync.Mutex
	ch chan struct{} // closed at the next wake
}

// run looks until ctx ends; last is when it's begun.
func (w *wakes) run(ctx context.Context, last time.Time) {
	t := time.NewTicker(w.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		now := w.wall()
		if now.Sub(last) > w.every+sleptFor {
			w.mu.Lock()
			if w.ch != nil {
				close(w.ch)
				w.ch = nil
			}
			w.mu.Unlock()
		}
		last = now
	}
}

// next is closed when the host wakes the next time.
func (w *wakes) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

// until is a context that ends when woke is closed too, with errWoke as its cause.
func until(ctx context.Context, woke <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-woke:
			cancel(errWoke)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// checkOnWake asks the server for a sign of life after each wake, the first of which closes
// next, and ends a session on which none comes. The function it returns tells, once the session has ended, whether it
// was found dead so.
func (l *Link) checkOnWake(s *mux.Session, next <-chan struct{}) (woke func() bool) {
	dead, done := false, make(chan struct{})
	go func() {
		defer close(done)
		defer fault.Catch(s.Broke)
		for s.Alive() {
			select {
			case <-next:
			case <-s.Done():
				return
			}
			next = l.wakes.next()
			ctx, cancel := context.WithTimeout(context.Background(), wakeWait)
			if s.Ping(ctx) != nil {
				dead = true
				s.Close(0, "")
			}
			cancel()
		}
	}()
	return func() bool { <-done; return dead }
}
