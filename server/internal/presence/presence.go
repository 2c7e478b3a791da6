// Package presence knows which agents have a live tunnel to this replica. Every connection
// has an epoch from the store; only the owner of an agent's current epoch can end its
// presence, so that an old connection's late close never unregisters a new one.
package presence

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Session is a live tunnel.
type Session interface {
	dispatch.Caller
	// Alive tells that it hasn't ended.
	Alive() bool
	// Ping waits for a sign of life.
	Ping(ctx context.Context) error
	// Close ends it at once; the peer is told the code and the reason.
	Close(code int, reason string)
	// Goodbye ends it after telling the peer when to come back.
	Goodbye(reason string, retryAfter time.Duration)
}

// Entry is one agent's present tunnel.
type Entry struct {
	Agent      fleet.AgentID
	Generation int64
	Epoch      int64
	Instance   string // of the agent's process
	Since      time.Time
	Session    Session
	Calls      func() int // counts those that wait for their response
	Going      func() int // and of them those whose end wasn't asked for

	ready bool // calls may go there
}

// Registry holds the entries. The zero value isn't usable; New makes one.
type Registry struct {
	mu      sync.RWMutex
	entries map[fleet.AgentID]Entry
	ends    Ends
	watch   func(id fleet.AgentID, online bool)
	drained bool
}

// New makes an empty registry. watch, if not nil, hears of each agent that comes online or
// goes offline; it must not block and must not call the registry.
func New(watch func(id fleet.AgentID, online bool)) *Registry {
	if watch == nil {
		watch = func(fleet.AgentID, bool) {}
	}
	return &Registry{entries: map[fleet.AgentID]Entry{}, watch: watch}
}

// Register makes e the agent's present tunnel and returns the one that it replaced, if
// any. The agent isn't online, and not routed to, before Ready. It's refused (ok false) when
// an entry with a higher epoch is there, or after Drain.
func (r *Registry) Register(e Entry) (old Entry, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, had := r.entries[e.Agent]
	if r.drained || had && old.Epoch >= e.Epoch {
		return Entry{}, false
	}
	e.ready = false
	r.entries[e.Agent] = e
	if old.ready {
		r.watch(e.Agent, false)
	}
	return old, true
}

// Ready lets calls go to exactly this epoch; false when another one is present, or it's
// ready already.
func (r *Registry) Ready(id fleet.AgentID, epoch int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[id]
	if !ok || e.Epoch != epoch || e.ready {
		return false
	}
	e.ready = true
	r.entries[id] = e
	r.watch(id, true)
	return true
}

// Unregister ends the presence of exactly this epoch; false when another one is present. broke
// tells that the agent may have another connection, or be about to: see BrokeOff.
func (r *Registry) Unregister(id fleet.AgentID, epoch int64, broke bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[id]
	if !ok || e.Epoch != epoch {
		return false
	}
	if broke && e.ready {
		r.ends.Note(id, time.Now())
	}
	delete(r.entries, id)
	if e.ready {
		r.watch(id, false)
	}
	return true
}

// BrokeOff tells that the agent's tunnel to this replica ended less than EndsFor ago, and not
// because the agent said so or was shut out: its next one may be there and not be known yet.
func (r *Registry) BrokeOff(id fleet.AgentID) bool {
	r.mu.RLock()
	e, here := r.entries[id]
	r.mu.RUnlock()
	if here && e.ready && !e.Session.Alive() {
		return true // it's ending right now; why is known in a moment
	}
	return r.ends.Recent(id, time.Now())
}

// Lookup returns the agent's live tunnel, also before it's ready.
func (r *Registry) Lookup(id fleet.AgentID) (Entry, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e, ok := r.entries[id]
	return e, ok && e.Session.Alive()
}

// Online returns the agent's live tunnel if it's ready.
func (r *Registry) Online(id fleet.AgentID) (Entry, bool) {
	e, ok := r.Lookup(id)
	return e, ok && e.ready
}

// Arriving tells that the agent has a live tunnel that isn't ready yet.
func (r *Registry) Arriving(id fleet.AgentID) bool {
	e, ok := r.Lookup(id)
	return ok && !e.ready
}

// Route implements dispatch.Router: the tunnel of exactly this agent and generation.
func (r *Registry) Route(id fleet.AgentID, generation int64) (dispatch.Caller, bool) {
	e, ok := r.Online(id)
	if !ok || e.Generation != generation {
		return nil, false
	}
	return e.Session, true
}

// State tells whether the agent is online here, since when and with which epoch.
func (r *Registry) State(id fleet.AgentID) (online bool, since time.Time, epoch int64) {
	e, ok := r.Online(id)
	if !ok {
		return false, time.Time{}, 0
	}
	return true, e.Since, e.Epoch
}

// List returns the live tunnels, by agent id, those that aren't ready yet included.
func (r *Registry) List() []Entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Entry, 0, len(r.entries))
	for _, e := range r.entries {
		if e.Session.Alive() {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Agent, b.Agent) })
	return out
}

// Len counts the tunnels, for metrics.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.entries)
}

// CloseAgent ends the agent's tunnel, if it has one, telling it the code and the reason.
func (r *Registry) CloseAgent(id fleet.AgentID, code int, reason string) bool {
	e, ok := r.Lookup(id)
	if ok {
		e.Session.Close(code, reason)
	}
	return ok
}

// Drain ends every tunnel in order and refuses new ones: the server stops. retryAfter
// gives the i-th of n agents its own time to come back.
func (r *Registry) Drain(reason string, retryAfter func(i, n int) time.Duration) {
	r.mu.Lock()
	r.drained = true
	all := make([]Entry, 0, len(r.entries))
	for _, e := range r.entries {
		all = append(all, e)
	}
	r.mu.Unlock()
	for i, e := range all {
		e.Session.Goodbye(reason, retryAfter(i, len(all)))
	}
}
