package tunnel

import (
	"context"
	"sync"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	strikes        = 3
	strikeWindow   = time.Hour
	quarantineTime = 15 * time.Minute
)

// marks counts what known agents did wrong. It's in memory: a restart forgives.
type marks struct {
	mu     sync.Mutex
	agents map[fleet.AgentID]*mark
}

type mark struct {
	times []time.Time // of violations within the window
	until time.Time   // quarantined until then
}

// strike notes a violation and tells whether the agent is quarantined by it.
func (m *marks) strike(id fleet.AgentID, now time.Time) (until time.Time, quarantined bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.agents == nil {
		m.agents = map[fleet.AgentID]*mark{}
	}
	k := m.agents[id]
	if k == nil {
		k = &mark{}
		m.agents[id] = k
	}
	recent := k.times[:0]
	for _, t := range k.times {
		if now.Sub(t) < strikeWindow {
			recent = append(recent, t)
		}
	}
	k.times = append(recent, now)
	if len(k.times) < strikes {
		return time.Time{}, false
	}
	k.times, k.until = nil, now.Add(quarantineTime)
	return k.until, true
}

// left is how long the agent is still quarantined.
func (m *marks) left(id fleet.AgentID, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.agents[id]
	if k == nil {
		return 0
	}
	if len(k.times) == 0 && !now.Before(k.until) {
		delete(m.agents, id)
	}
	return max(0, k.until.Sub(now))
}

// idLocks lets one connection of an agent at a time pass the last part of the handshake.
type idLocks struct {
	mu      sync.Mutex
	held    map[fleet.AgentID]chan struct{}
	waiting map[fleet.AgentID]int
}

// maxWaiting is how many connections of one agent may wait for their turn. An agent needs
// one; who has a key must not hold the handshakes' places with it.
const maxWaiting = 2

// queue counts a connection among those that wait; false when there are enough.
func (l *idLocks) queue(id fleet.AgentID, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = map[fleet.AgentID]int{}
	}
	if n > 0 && l.waiting[id] >= maxWaiting {
		return false
	}
	if l.waiting[id] += n; l.waiting[id] == 0 {
		delete(l.waiting, id)
	}
	return true
}

// lock waits for the agent's turn; false when ctx ended first, or too many wait already.
func (l *idLocks) lock(ctx context.Context, id fleet.AgentID) bool {
	if !l.queue(id, 1) {
		return false
	}
	defer l.queue(id, -1)
	for {
		l.mu.Lock()
		if l.held == nil {
			l.held = map[fleet.AgentID]chan struct{}{}
		}
		free, taken := l.held[id]
		if !taken {
			l.held[id] = make(chan struct{})
			l.mu.Unlock()
			return true
		}
		l.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *idLocks) unlock(id fleet.AgentID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[id])
	delete(l.held, id)
}
