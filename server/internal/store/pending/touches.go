package pending

import (
	"maps"
	"sync"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Touches collects times of last use and last sight, so that they cost no commit each.
type Touches struct {
	mu     sync.Mutex
	pats   map[string]time.Time        // to be written
	agents map[fleet.AgentID]time.Time // to be written
	fresh  map[fleet.AgentID]time.Time // to be shown by the snapshot
}

// AddPAT notes a use.
func (b *Touches) AddPAT(id string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pats == nil {
		b.pats = make(map[string]time.Time)
	}
	if at.After(b.pats[id]) {
		b.pats[id] = at
	}
}

// PAT is the unwritten time of last use, zero if there's none.
func (b *Touches) PAT(id string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pats[id]
}

// AddAgents notes a sight of each.
func (b *Touches) AddAgents(at time.Time, ids []fleet.AgentID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.agents == nil {
		b.agents = make(map[fleet.AgentID]time.Time)
	}
	if b.fresh == nil {
		b.fresh = make(map[fleet.AgentID]time.Time)
	}
	for _, id := range ids {
		if at.After(b.agents[id]) {
			b.agents[id] = at
			b.fresh[id] = at
		}
	}
}

// Agent is the unwritten time of last sight, zero if there's none.
func (b *Touches) Agent(id fleet.AgentID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[id]
}

// TakeFresh are the sights since the last time, for the snapshot.
func (b *Touches) TakeFresh() map[fleet.AgentID]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.fresh
	b.fresh = nil
	return m
}

// Unwritten are copies of what is to be written.
func (b *Touches) Unwritten() (pats map[string]time.Time, agents map[fleet.AgentID]time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.pats), maps.Clone(b.agents)
}

// WrittenPATs drops what was written, unless a later time came meanwhile.
func (b *Touches) WrittenPATs(pats map[string]time.Time, ids []string) {
	forget(&b.mu, b.pats, ids, pats)
}

// WrittenAgents is WrittenPATs for agents.
func (b *Touches) WrittenAgents(agents map[fleet.AgentID]time.Time, ids []fleet.AgentID) {
	forget(&b.mu, b.agents, ids, agents)
}

// forget drops what was written, unless a later time came meanwhile.
func forget[K comparable](mu *sync.Mutex, from map[K]time.Time, keys []K, written map[K]time.Time) {
	mu.Lock()
	defer mu.Unlock()
	for _, k := range keys {
		if from[k].Equal(written[k]) {
			delete(from, k)
		}
	}
}
