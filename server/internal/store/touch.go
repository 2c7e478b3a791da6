package store

import (
	"context"
	"maps"
	"slices"
)

// touchSlice bounds the rows of one transaction of touches: calls wait for it.
const touchSlice = 100

// flushTouches writes what was collected, a slice at a time, in one order for all processes,
// so that two never wait for each other. What couldn't be written is kept for the next time.
func (db *DB) flushTouches(ctx context.Context) error {
	pats, agents := db.touches.Unwritten()
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
		db.touches.WrittenPATs(pats, slice)
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
		db.touches.WrittenAgents(agents, slice)
	}
	return nil
}
