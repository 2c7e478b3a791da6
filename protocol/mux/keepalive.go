package mux

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
)

// pings numbers the pings of one side and finds who waits for a pong.
type pings struct {
	mu      sync.Mutex
	last    int64
	waiting map[int64]chan struct{}
	next    int64 // when the next keep-alive ping is due
	meter   meter
	stopped bool
}

func (s *Session) stopTimer() {
	s.pings.mu.Lock()
	defer s.pings.mu.Unlock()
	s.pings.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Ping asks the peer for a sign of life and waits for it.
func (s *Session) Ping(ctx context.Context) error {
	ch := make(chan struct{})
	s.pings.mu.Lock()
	n := s.pings.begin(s.now())
	if s.pings.waiting == nil {
		s.pings.waiting = map[int64]chan struct{}{}
	}
	s.pings.waiting[n] = ch
	s.pings.mu.Unlock()
	defer func() {
		s.pings.mu.Lock()
		delete(s.pings.waiting, n)
		s.pings.mu.Unlock()
	}()
	s.force(&protocol.Ping{Type: protocol.TypePing, N: n})
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return errors.Join(ErrDead, context.Cause(ctx))
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

func (s *Session) onPong(n int64) {
	now, idle := s.now(), s.in.receiving == 0 && s.out.quiet()
	s.pings.mu.Lock()
	if ch := s.pings.waiting[n]; ch != nil {
		delete(s.pings.waiting, n)
		close(ch)
	} else if n < 1 || n > s.pings.last {
		s.ignored.Add(1)
	}
	rtt, ok := s.pings.measured(n, now, idle)
	s.pings.mu.Unlock()
	if ok {
		s.adapt(rtt)
	}
}

// startTimer begins the keep-alive. One timer a connection does both: it's due at the next
// ping or when the peer would be dead, whichever comes first; what comes in never resets it.
// From version 2 on the first ping goes at once: it shows the way's length before much is
// under way.
func (s *Session) startTimer() {
	s.lastRead.Store(s.now())
	s.pings.mu.Lock()
	s.pings.next = s.nextPing(s.now())
	first := int64(0)
	if !s.pings.stopped {
		s.timer = time.AfterFunc(time.Duration(s.pings.next-s.now()), s.tick)
		if s.cfg.Handler == nil && s.cfg.Version >= 2 {
			first = s.pings.begin(s.now())
		}
	}
	s.pings.mu.Unlock()
	if first > 0 {
		s.force(&protocol.Ping{Type: protocol.TypePing, N: first})
	}
}

// pingSlots is how many moments within an interval there are at which sessions ping.
const pingSlots = 64

// nextPing is when the keep-alive ping after one at now is due: an interval later, less up to
// a part of it, so that the connections of one server ping together. Waking it up for each
// of thousands by itself costs it several times as much.
func (s *Session) nextPing(now int64) int64 {
	at, slot := now+int64(s.cfg.KeepAlive), max(int64(s.cfg.KeepAlive)/pingSlots, 1)
	return at - (s.base.UnixNano()+at)%slot
}

func (s *Session) tick() {
	defer fault.Catch(s.caught())
	now, limit := s.now(), 2*int64(s.cfg.KeepAlive)
	dead := s.lastRead.Load() + limit
	if since := s.writeSince.Load(); since != 0 {
		dead = min(dead, since+limit)
	}
	if now >= dead {
		s.end(ErrDead, 0, "")
		return
	}
	s.pings.mu.Lock()
	due := false
	if s.cfg.Handler == nil {
		if due = now >= s.pings.next; due {
			s.pings.begin(now)
			s.pings.next = s.nextPing(now)
		}
		dead = min(dead, s.pings.next)
	}
	n := s.pings.last
	if !s.pings.stopped {
		s.timer.Reset(time.Duration(dead - now))
	}
	s.pings.mu.Unlock()
	if due {
		s.force(&protocol.Ping{Type: protocol.TypePing, N: n})
	}
}
