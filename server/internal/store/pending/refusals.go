// Package pending holds what nobody waits for until it is written: refusals, and times of last
// use and last sight. Nothing in it waits for the database.
package pending

import (
	"fmt"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	// PerSecond is how many refusals of one principal get a row of their own each
	// second; more are counted into shared rows.
	PerSecond = 10
	// refusalsPending bounds the refusals that wait to be written.
	refusalsPending = 1024
	// refusalKinds bounds the shared rows and the principals watched at one time.
	refusalKinds = 1024
)

// Refusals holds refusals until the writer takes them. Nothing in it waits for the
// database, and nothing in it grows without bound: what doesn't fit is counted.
type Refusals struct {
	// Wake holds a token when there's something to take at once.
	Wake chan struct{}

	mu      sync.Mutex
	waiting []*fleet.Refusal
	second  int64          // the second that seen counts
	seen    map[string]int // by principal
	shared  map[refusalKind]*fleet.Refusal
	since   int64                            // the second in which shared or nobody got its first
	nobody  map[protocol.Code]*fleet.Refusal // all those without a principal
	dropped int                              // counted into a later row
	ended   bool                             // the last ones were taken
}

type refusalKind struct {
	principal string
	edge      string
	code      protocol.Code
}

// NewRefusals is empty.
func NewRefusals() *Refusals {
	return &Refusals{Wake: make(chan struct{}, 1), seen: make(map[string]int), shared: make(map[refusalKind]*fleet.Refusal), nobody: make(map[protocol.Code]*fleet.Refusal)}
}

// Add tells whether the writer should be woken now, and whether it was still taken.
func (b *Refusals) Add(r *fleet.Refusal, second int64) (wake, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false, false
	}
	if second != b.second || len(b.seen) >= refusalKinds {
		b.second = second
		clear(b.seen)
	}
	if len(b.shared) == 0 && len(b.nobody) == 0 {
		b.since = second
	}
	if r.Principal == "" {
		b.anonymous(r)
		return false, true
	}
	b.seen[r.Principal]++
	if b.seen[r.Principal] <= PerSecond && len(b.waiting) < refusalsPending {
		b.waiting = append(b.waiting, r)
		return true, true
	}
	b.share(r)
	return false, true
}

// anonymous counts a refusal of nobody in particular into the one row of its code; mu is held.
func (b *Refusals) anonymous(r *fleet.Refusal) {
	if s := b.nobody[r.Code]; s != nil {
		r.Count += s.Count
		for _, both := range []struct{ now, before *string }{
			{&r.Client, &s.Client}, {&r.Edge, &s.Edge}, {&r.Tool, &s.Tool}, {&r.Agent, &s.Agent},
		} {
			if *both.now != *both.before {
				*both.now = "" // of several the row names none
			}
		}
	}
	b.nobody[r.Code] = r
}

// Take hands over what waits: the pending ones, and once their second is over (or if all
// are wanted) the shared rows and a row for the dropped.
func (b *Refusals) Take(now time.Time, all bool) []*fleet.Refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Unix() != b.since || all {
		for _, r := range b.shared {
			b.waiting = append(b.waiting, r)
		}
		clear(b.shared)
		for _, r := range b.nobody {
			b.waiting = append(b.waiting, r)
		}
		clear(b.nobody)
		if b.dropped > 0 {
			b.waiting = append(b.waiting, &fleet.Refusal{Code: protocol.CodeRateLimited, Count: b.dropped, At: now,
				Message: fmt.Sprintf("%d refusals came faster than they could be written one by one", b.dropped)})
			b.dropped = 0
		}
	}
	return b.drain()
}

func (b *Refusals) drain() []*fleet.Refusal {
	out := b.waiting
	b.waiting = nil
	return out
}

// Lost takes back a refusal that the database didn't take: it's written with the shared
// rows, again and again until it is.
func (b *Refusals) Lost(r *fleet.Refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.shared) == 0 && len(b.nobody) == 0 {
		b.since = time.Now().Unix()
	}
	if r.Principal == "" {
		b.anonymous(r)
		return
	}
	b.share(r)
}

// share counts a refusal into the row of its kind; mu is held.
func (b *Refusals) share(r *fleet.Refusal) {
	k := refusalKind{r.Principal, r.Edge, r.Code}
	switch s := b.shared[k]; {
	case s != nil:
		r.Count += s.Count
		b.shared[k] = r
	case len(b.shared) < refusalKinds:
		b.shared[k] = r
	default:
		b.dropped += r.Count
	}
}

// End hands over everything and takes no more.
func (b *Refusals) End() []*fleet.Refusal {
	out := b.Take(time.Now(), true)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return append(out, b.drain()...)
}
