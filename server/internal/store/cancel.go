package store

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

const cancelCall = `UPDATE calls SET cancel_at = $2, cancel_by = $3, cancel_id = $4 WHERE id = $1 AND cancel_at IS NULL AND finished_at IS NULL`

// RecordCancel makes durable that the end of an open call was asked for: whoever has the
// call then, or takes it over, ends it. It says nothing of how the call ends. For a second
// request, and for a call that has ended, the error is ErrAlreadyFinal and nothing changes;
// for one that doesn't exist it's not_found. ctx counts as in RecordIntent.
func (db *DB) RecordCancel(ctx context.Context, c fleet.Cancel) error {
	if c.At.IsZero() {
		c.At = time.Now()
	}
	c.Principal, c.Name = body.Clean(c.Principal, maxName), body.Clean(c.Name, maxName)
	return db.submit(ctx, &op{cancel: &c, rowID: newID()})
}

// QueuedFor lists the calls that are queued for an agent, by id. The server's own aren't among
// them: they end what was revoked.
func (db *DB) QueuedFor(ctx context.Context, agent fleet.AgentID) ([]fleet.CallID, error) {
	return db.callIDs(ctx, `SELECT id FROM calls WHERE finished_at IS NULL AND state = 'queued' AND agent = $1 AND principal NOT LIKE 'system:%' ORDER BY id`, string(agent))
}

// CancelsHere lists the open calls of this process whose end was asked for, wherever that
// was.
func (db *DB) CancelsHere(ctx context.Context) ([]fleet.CallID, error) {
	return db.callIDs(ctx, `SELECT id FROM calls WHERE instance = $1 AND cancel_at IS NOT NULL AND finished_at IS NULL`, db.Instance())
}

func (db *DB) callIDs(ctx context.Context, query string, args ...any) ([]fleet.CallID, error) {
	var ids []fleet.CallID
	err := db.query(ctx, func(row scanner) error {
		var id string
		err := row.Scan(&id)
		ids = append(ids, fleet.CallID(id))
		return err
	}, query, args...)
	return ids, err
}

// cancelRows are the statements of a RecordCancel.
func cancelRows(o *op, instance string) []statement {
	c := o.cancel
	return []statement{
		{owner: o, must: true, query: cancelCall, args: []any{string(c.CallID), micros(c.At), c.Name, o.rowID}},
		ofCall(o, KindCancel, c.At, body.Marshal(&body.Cancel{
			V: 1, Kind: string(KindCancel), ID: o.rowID, At: body.Stamp(c.At), CallID: string(c.CallID), Principal: c.Principal, Name: c.Name, Instance: instance,
		})),
	}
}

func (t *tx) replayCancel(ctx context.Context, r *Record) error {
	var b body.Cancel
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return unreadable(r, err)
	}
	at, err := body.Unstamp(b.At)
	if err != nil {
		return unreadable(r, err)
	}
	n, err := t.exec(ctx, cancelCall, b.CallID, micros(at), b.Name, r.ID)
	if err == nil && n != 1 {
		err = fmt.Errorf("store: the record's row %s cancels a call that isn't, or a second time", r.ID)
	}
	return err
}
