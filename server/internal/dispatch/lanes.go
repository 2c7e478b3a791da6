package dispatch

import (
	"context"
	"sync"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Limits of what runs at once. An agent's own limit is 64; this one is lower, so that a call
// is never refused there because the agent has answered another one but not yet put it away.
const (
	// perAgent is how many calls are under way on one agent.
	perAgent = 60
	// perShare is how many of them one principal may hold: somebody else always gets through.
	perShare = 48
	// maxWaiting is how many calls wait for a place on one agent, and ownWaiting how many of
	// them one principal may have.
	maxWaiting = 2048
	ownWaiting = 1536
	// ownWaits is how many requests of one principal wait for calls that they haven't made, or
	// not yet, and maxWaits how many of all.
	ownWaits = 1024
	maxWaits = 4096
	// maxOwn is how many open calls one principal may have on all agents, queued ones included.
	maxOwn = 4096
	// maxQueued is how many calls may be queued for one agent that is offline, and ownQueued
	// how many of them one principal may have.
	maxQueued = 256
	ownQueued = 128
	// maxOpenBytes bounds the arguments of all open calls, which are kept in memory; those of
	// queued ones are read whole at the start, too.
	maxOpenBytes = 256 << 20
	// ownOpenBytes bounds those of one principal.
	ownOpenBytes = maxOpenBytes / 4
)

// keep counts the bytes of an open call's arguments in, or out. d.mu is held.
func (d *Dispatcher) keep(principal string, n int64) {
	d.openBytes += n
	if d.ownBytes[principal] += n; d.ownBytes[principal] <= 0 {
		delete(d.ownBytes, principal)
	}
}

// lanes give the calls of each agent their places. Who waits is served fairly: of the
// principals that may have another place, the one that holds the fewest comes first.
type lanes struct {
	mu     sync.Mutex
	agents map[fleet.AgentID]*lane
}

type lane struct {
	taken   int
	held    map[string]int // places by principal
	waiting []*waiter      // in the order they came
}

type waiter struct {
	who   string
	ready chan struct{} // closed when it has its place
	has   bool
}

// enter waits for a place. release gives it back and must be called once. The error is a
// *fleet.Error when too many wait, context.Cause(ctx) when ctx ended, or errClosing.
func (l *lanes) enter(ctx context.Context, closing <-chan struct{}, agent fleet.AgentID, who string) (release func(), err error) {
	w, err := l.join(agent, who)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.ready:
		return func() { l.leave(agent, w) }, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-closing:
		err = errClosing
	}
	l.leave(agent, w)
	return nil, err
}

func (l *lanes) join(agent fleet.AgentID, who string) (*waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agents == nil {
		l.agents = map[fleet.AgentID]*lane{}
	}
	n := l.agents[agent]
	if n == nil {
		n = &lane{held: map[string]int{}}
		l.agents[agent] = n
	}
	if len(n.waiting) >= maxWaiting {
		return nil, fleet.Limited("agent_calls", "%d calls wait for agent %s already, the most that may; nothing was sent; try again when some have ended", maxWaiting, agent)
	}
	if n.waits(who) >= ownWaiting {
		return nil, fleet.Limited("principal_waiting", "%d calls of this credential wait for agent %s already, the most that may; nothing was sent; try again when some have ended", ownWaiting, agent)
	}
	w := &waiter{who: who, ready: make(chan struct{})}
	n.waiting = append(n.waiting, w)
	n.serve()
	return w, nil
}

// leave gives back a place, or gives up waiting for one.
func (l *lanes) leave(agent fleet.AgentID, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.agents[agent]
	if w.has {
		n.taken--
		if n.held[w.who]--; n.held[w.who] == 0 {
			delete(n.held, w.who)
		}
	} else {
		n.remove(w)
	}
	n.serve()
	if n.taken == 0 && len(n.waiting) == 0 {
		delete(l.agents, agent)
	}
}

// waits counts the calls of one principal that wait.
func (n *lane) waits(who string) int {
	count := 0
	for _, w := range n.waiting {
		if w.who == who {
			count++
		}
	}
	return count
}

func (n *lane) remove(w *waiter) {
	for i, v := range n.waiting {
		if v == w {
			n.waiting = append(n.waiting[:i], n.waiting[i+1:]...)
			return
		}
	}
}

// serve hands out free places.
func (n *lane) serve() {
	for n.taken < perAgent {
		var next *waiter
		for _, w := range n.waiting {
			if held := n.held[w.who]; held < perShare && (next == nil || held < n.held[next.who]) {
				next = w
			}
		}
		if next == nil {
			return
		}
		n.remove(next)
		n.taken++
		n.held[next.who]++
		next.has = true
		close(next.ready)
	}
}
