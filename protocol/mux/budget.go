package mux

import (
	"context"
	"sync"
)

// budget is a counting semaphore that is fair: who came first is served first, so that a
// large frame isn't starved by small ones.
type budget struct {
	mu      sync.Mutex
	free    int64
	waiting []*waiter
}

type waiter struct {
	n     int64
	ready chan struct{}
}

// acquire takes n of the budget, or returns the cause of ctx's or done's end.
func (b *budget) acquire(ctx, done context.Context, n int64) error {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.free >= n {
		b.free -= n
		b.mu.Unlock()
		return nil
	}
	w := &waiter{n: n, ready: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-done.Done():
		err = context.Cause(done)
	}
	b.forget(w)
	return err
}

func (b *budget) forget(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, x := range b.waiting {
		if x == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.serve()
			return
		}
	}
	b.free += w.n // it was served at the same moment
	b.serve()
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.serve()
}

func (b *budget) serve() {
	for len(b.waiting) > 0 && b.waiting[0].n <= b.free {
		b.free -= b.waiting[0].n
		close(b.waiting[0].ready)
		b.waiting = b.waiting[1:]
	}
}
