package protocol

import "time"

// Backoff says when an agent dials again: section 9 of docs/protocol.md. Agents that lost
// the same server don't come back together: the first wait is anything up to a ceiling, the
// later ones between half of it and all of it, while it grows slowly. (With anything up to a
// ceiling that doubles every time, half of a fleet comes back in the first second after an
// outage.) The zero value is an agent that hasn't dialled yet; it isn't for concurrent use.
type Backoff struct {
	// Min and Max bound the ceiling; 0.5 s and 60 s when zero.
	Min, Max time.Duration
	// Broken is the first ceiling after a connection that had settled and ended without a
	// word; 8 s when zero. Up to it a ceiling doubles, above it grows by a quarter.
	Broken time.Duration

	ceiling time.Duration // of the latest attempt; 0 before the first
}

// Settled is how long a connection must have been up for the back-off to begin anew.
const Settled = 10 * time.Second

// MaxAsked bounds what a server can make an agent wait.
const MaxAsked = 24 * time.Hour

// wakeCeiling is for a host that was asleep: nobody else woke with it, and it's wanted.
const wakeCeiling = time.Second

// Ended is how an attempt to be connected ended.
type Ended struct {
	// Up is how long the connection was up; 0 when there was none.
	Up time.Duration
	// Told: the server said that it ends, by a goodbye or a close frame. A connection that
	// breaks without a word may be one of thousands, whose server was killed.
	Told bool
	// Asked is what a refuse frame, a goodbye or Retry-After asked for; 0 for nothing.
	Asked time.Duration
	// Woke: this host was asleep or stopped, and found its connection dead.
	Woke bool
}

// Next is the time to the next attempt. random returns a number in [0, n).
func (b *Backoff) Next(e Ended, random func(n int64) int64) time.Duration {
	highest := or(b.Max, time.Minute)
	lowest, broken := min(or(b.Min, 500*time.Millisecond), highest), min(or(b.Broken, 8*time.Second), highest)
	floor := time.Duration(0)
	switch {
	case e.Woke:
		b.ceiling = min(wakeCeiling, highest)
	case e.Up >= Settled && !e.Told:
		b.ceiling = broken
	case e.Up >= Settled || b.ceiling == 0:
		b.ceiling = lowest
	case b.ceiling < broken:
		b.ceiling = min(2*b.ceiling, broken)
		floor = b.ceiling / 2
	default:
		b.ceiling = min(b.ceiling+b.ceiling/4, highest)
		floor = b.ceiling / 2
	}
	ceiling := b.ceiling
	asked := min(max(e.Asked, 0), MaxAsked)
	if asked > 0 {
		// Many were asked the same, in whole seconds.
		ceiling = max(ceiling, asked/4, min(time.Second, highest))
	}
	return asked + floor + time.Duration(random(int64(ceiling-floor)+1))
}

func or(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
