package store

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// touchSlice bounds the rows of one transaction of touches: calls wait for it.
const touchSlice = 100

// flushTouches writes what was collected. What couldn't be written is kept for the next time.
func (db *DB) flushTouches(ctx context.Context) error {
	pats, agents := db.touches.Unwritten()
	const touch = `UPDATE pats SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)`
	if err := flush(ctx, db, touch, pats, db.touches.WrittenPATs); err != nil {
		return err
	}
	const see = `UPDATE agents SET last_seen = $2 WHERE id = $1 AND (last_seen IS NULL OR last_seen < $2)`
	return flush(ctx, db, see, agents, db.touches.WrittenAgents)
}

// flush writes a slice at a time, in one order for all processes, so that two never wait for
// each other.
func flush[K ~string](ctx context.Context, db *DB, touch string, at map[K]time.Time, written func(map[K]time.Time, []K)) error {
	for slice := range slices.Chunk(slices.Sorted(maps.Keys(at)), touchSlice) {
		err := db.inTx(ctx, func(t *tx) error {
			for _, id := range slice {
				if _, err := t.exec(ctx, touch, string(id), micros(at[id])); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		written(at, slice)
	}
	return nil
}

// readSights lets the snapshot show when the other replicas saw their agents: the policy's
// version doesn't move with it. A process alone on its database knows all of it already.
func (db *DB) readSights(ctx context.Context) error {
	if !db.shared.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	known, fresh := db.Snapshot().Agents, map[fleet.AgentID]time.Time{}
	err := db.query(ctx, func(row scanner) error {
		var id fleet.AgentID
		var seen sql.NullInt64
		err := row.Scan((*string)(&id), &seen)
		if a, at := known[id], fromMicros(seen); a != nil && at.After(a.LastSeen) {
			fresh[id] = at
		}
		return err
	}, `SELECT id, last_seen FROM agents WHERE removed_at IS NULL`)
	if err != nil || len(fresh) == 0 {
		return err
	}
	select {
	case db.refresh <- struct{}{}: // nothing waits for the database with it
		defer func() { <-db.refresh }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	next := *db.snap.Load()
	next.Agents = maps.Clone(next.Agents)
	next.see(fresh)
	db.snap.Store(&next)
	return nil
}
