package run

import (
	"context"
	"sync"
	"time"
)

const (
	// lookEvery is how often a runner notes that it's awake.
	lookEvery = 250 * time.Millisecond
	// stalledFor is how long it must not have been for that to count as a stall: less is a busy
	// machine.
	stalledFor = 2 * lookEvery
	// settleFor is how long after a stall requests may still be read that came before its end.
	settleFor = 5 * time.Second
)

// awake knows since when what is read now may have lain there: a process that is stopped, or
// a host that's asleep, doesn't read what comes, and a request doesn't say when it was sent.
// Times are of its own clock, which runs on meanwhile.
type awake struct {
	now func() time.Duration

	mu        sync.Mutex
	watched   bool          // look is called
	last      time.Duration // when it was called
	from, to  time.Duration // the latest stall; stalls that follow each other closely are one
	connected time.Duration // when the connection was made that requests come over now
}

// look notes that this process runs, and that it hasn't for a while.
func (a *awake) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.watched && now-a.last > stalledFor {
		if a.to == 0 || a.last-a.to > settleFor {
			a.from = a.last
		}
		a.to = now
	}
	a.watched, a.last = true, now
}

// connect notes that requests come over a new connection from now on, and that this process runs:
// it may be stopped before it has looked for the first time.
func (a *awake) connect() {
	a.look()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connected = a.now()
}

// lain is for how long a request that is read now may have lain there at most, as far as that
// is this host's doing.
func (a *awake) lain() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.watched {
		return 0
	}
	now := a.now()
	since := a.last
	if a.to > 0 && now-a.to < settleFor || now-a.last > stalledFor && a.to > 0 && a.last-a.to < settleFor {
		since = a.from
	}
	return max(0, now-max(since, a.connected))
}

// Watch keeps an eye on whether this process runs, until ctx ends. Before it does, and before
// Connected, a request counts as sent when it was read.
func (r *Runner) Watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		r.awake.look()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Connected tells that requests come over a new connection from now on: what is read from it
// wasn't there before.
func (r *Runner) Connected() { r.awake.connect() }

// age is how long ago a call's request was read. The clock of time.Since stands still on most
// systems while the host is asleep.
func (f *flight) age() time.Duration { return max(time.Since(f.came), f.awake.now()-f.read) }

// expired tells that a queued call's time to start may have passed: whether it has can't be
// told to the instant, and it never starts late.
func (f *flight) expired() bool {
	return f.req.NotAfterMS > 0 && (f.lain+f.age()).Milliseconds() >= f.req.NotAfterMS
}

// wall is the time of day, as a clock.
func wall() time.Duration { return time.Duration(time.Now().UnixNano()) }
