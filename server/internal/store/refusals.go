package store

import (
	"fmt"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	// refusalsPerSecond is how many refusals of one principal get a row of their own each
	// second; more are counted into shared rows.
	refusalsPerSecond = 10
	// refusalsPending bounds the refusals that wait to be written.
	refusalsPending = 1024
	// refusalKinds bounds the shared rows and the principals watched at one time.
	refusalKinds = 1024
)

// refusalBox holds refusals until the writer takes them. Nothing in it waits for the
// database, and nothing in it grows without bound: what doesn't fit is counted.
type refusalBox struct {
	wake chan struct{}

	mu      sync.Mutex
	pending []*fleet.Refusal
	second  int64          // the second that seen counts
	seen    map[string]int // by principal
	shared  map[refusalKind]*fleet.Refusal
	since   int64          // the second in which shared or nobody got its first
	nobody  *fleet.Refusal // all those without a principal
	dropped int            // counted into a later row
	ended   bool           // the last ones were taken
}

type refusalKind struct {
	principal string
	edge      string
	code      protocol.Code
}

func (b *refusalBox) init() {
	b.wake = make(chan struct{}, 1)
	b.seen = make(map[string]int)
	b.shared = make(map[refusalKind]*fleet.Refusal)
}

// RecordRefusal notes a call that was turned away. It doesn't wait: the row is written
// soon, together with others. Above ten a second of one principal they share a row a
// second and code, which says how many it stands for; what doesn't fit into the bounded
// queue is counted into a later row. Those without a principal, which anybody can cause,
// share one row a second, whoever and whatever they are: it keeps what they have in common,
// and the latest message.
func (db *DB) RecordRefusal(r fleet.Refusal) {
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r.Principal = clean(r.Principal, maxName)
	r.Name = clean(r.Name, maxName)
	r.Client = clean(r.Client, maxClient)
	r.Edge = clean(r.Edge, maxName)
	r.Tool = clean(r.Tool, maxName)
	r.Agent = clean(r.Agent, maxAgent)
	r.Message = clean(r.Message, maxMessage)
	r.Count = max(r.Count, 1)
	wake, ok := db.refusals.add(&r, time.Now().Unix())
	if !ok {
		db.log.Warn("a refusal came after the record was closed", "principal", r.Principal, "agent", r.Agent, "tool", r.Tool, "code", r.Code)
	}
	if wake {
		select {
		case db.refusals.wake <- struct{}{}:
		default:
		}
	}
}

// add tells whether the writer should be woken now, and whether it was still taken.
func (b *refusalBox) add(r *fleet.Refusal, second int64) (wake, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false, false
	}
	if second != b.second || len(b.seen) >= refusalKinds {
		b.second = second
		clear(b.seen)
	}
	if len(b.shared) == 0 && b.nobody == nil {
		b.since = second
	}
	if r.Principal == "" {
		b.anonymous(r)
		return false, true
	}
	b.seen[r.Principal]++
	if b.seen[r.Principal] <= refusalsPerSecond && len(b.pending) < refusalsPending {
		b.pending = append(b.pending, r)
		return true, true
	}
	b.share(r)
	return false, true
}

// anonymous counts a refusal of nobody in particular; mu is held.
func (b *refusalBox) anonymous(r *fleet.Refusal) {
	if s := b.nobody; s != nil {
		r.Count += s.Count
		for _, both := range []struct{ now, before *string }{
			{&r.Client, &s.Client}, {&r.Edge, &s.Edge}, {&r.Tool, &s.Tool}, {&r.Agent, &s.Agent},
		} {
			if *both.now != *both.before {
				*both.now = "" // of several the row names none
			}
		}
	}
	b.nobody = r
}

// take hands over what waits: the pending ones, and once their second is over (or if all
// are wanted) the shared rows and a row for the dropped.
func (b *refusalBox) take(now time.Time, all bool) []*op {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Unix() != b.since || all {
		for _, r := range b.shared {
			b.pending = append(b.pending, r)
		}
		clear(b.shared)
		if b.nobody != nil {
			b.pending = append(b.pending, b.nobody)
			b.nobody = nil
		}
		if b.dropped > 0 {
			b.pending = append(b.pending, &fleet.Refusal{Code: protocol.CodeRateLimited, Count: b.dropped, At: now,
				Message: fmt.Sprintf("%d refusals came faster than they could be written one by one", b.dropped)})
			b.dropped = 0
		}
	}
	return b.drain()
}

func (b *refusalBox) drain() []*op {
	out := make([]*op, 0, len(b.pending))
	for _, r := range b.pending {
		o := &op{refusal: r, rowID: newID()}
		o.state.Store(opTaken)
		out = append(out, o)
	}
	b.pending = nil
	return out
}

// lost takes back a refusal that the database didn't take: it's written with the shared
// rows, again and again until it is.
func (b *refusalBox) lost(r *fleet.Refusal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.shared) == 0 && b.nobody == nil {
		b.since = time.Now().Unix()
	}
	if r.Principal == "" {
		b.anonymous(r)
		return
	}
	b.share(r)
}

// share counts a refusal into the row of its kind; mu is held.
func (b *refusalBox) share(r *fleet.Refusal) {
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

// end hands over everything and takes no more.
func (b *refusalBox) end() []*op {
	out := b.take(time.Now(), true)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return append(out, b.drain()...)
}
