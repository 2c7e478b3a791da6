package store

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// touchSlice bounds the rows of one transaction of touches: calls wait for it.
const touchSlice = 100

// touchBox collects times of last use and last sight, so that they cost no commit each.
type touchBox struct {
	mu     sync.Mutex
	pats   map[string]time.Time        // to be written
	agents map[fleet.AgentID]time.Time // to be written
	fresh  map[fleet.AgentID]time.Time // to be shown by the snapshot
}

func (b *touchBox) addPAT(id string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pats == nil {
		b.pats = make(map[string]time.Time)
	}
	if at.After(b.pats[id]) {
		b.pats[id] = at
	}
}

// pat is the unwritten time of last use, zero if there's none.
func (b *touchBox) pat(id string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pats[id]
}

func (b *touchBox) addAgents(at time.Time, ids []fleet.AgentID) {
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

// agent is the unwritten time of last sight, zero if there's none.
func (b *touchBox) agent(id fleet.AgentID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.agents[id]
}

func (b *touchBox) takeFresh() map[fleet.AgentID]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.fresh
	b.fresh = nil
	return m
}

// flushTouches writes what was collected, a slice at a time, in one order for all processes,
// so that two never wait for each other. What couldn't be written is kept for the next time.
func (db *DB) flushTouches(ctx context.Context) error {
	db.touches.mu.Lock()
	pats, agents := maps.Clone(db.touches.pats), maps.Clone(db.touches.agents)
	db.touches.mu.Unlock()
	for slice := range slices.Chunk(slices.Sorted(maps.Keys(pats)), touchSlice) {
		err := db.inTx(ctx, func(t *tx) error {
			for _, id := range slice {
				if _, err := t.exec(ctx, `UPDATE pats SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)`, id, micros(pats[id])); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		forget(&db.touches.mu, db.touches.pats, slice, pats)
	}
	for slice := range slices.Chunk(slices.Sorted(maps.Keys(agents)), touchSlice) {
		err := db.inTx(ctx, func(t *tx) error {
			for _, id := range slice {
				if _, err := t.exec(ctx, `UPDATE agents SET last_seen = $2 WHERE id = $1 AND (last_seen IS NULL OR last_seen < $2)`, string(id), micros(agents[id])); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		forget(&db.touches.mu, db.touches.agents, slice, agents)
	}
	return nil
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
