package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

const (
	insertQueued = `INSERT INTO queued (call_id, args, sealed) VALUES ($1, $2, $3)`
	deleteQueued = `DELETE FROM queued WHERE call_id = $1`

	sendCall = `UPDATE calls SET state = 'dispatched', boot = $2, sent_id = $3 WHERE id = $1 AND state = 'queued' AND finished_at IS NULL AND instance = $4`
)

// sentMark says that a queued call is about to be sent.
type sentMark struct {
	id   fleet.CallID
	boot string
	at   time.Time
}

// MarkSent moves a queued call to dispatched, before it's written to its agent: it returns
// after the synced commit, which also removes the frozen bytes. boot is the agent's journal
// and boot now. When the call isn't queued any more (it was sent, or has ended), or isn't this
// process's, the error is ErrAlreadyFinal and nothing changes; for a call that doesn't exist it's not_found. ctx
// counts as in RecordIntent.
//
// mark, of NewMark, names this sending, as the id of its row. After any error nothing may be
// sent. After unavailable it isn't known whether the call is still queued: RecordOutcome ends
// it either way, and MarkSent with the same mark tells, without an error, that the row which
// is there is its own.
func (db *DB) MarkSent(ctx context.Context, id fleet.CallID, boot, mark string) error {
	return db.submit(ctx, &op{sent: &sentMark{id: id, boot: body.Clean(boot, maxName), at: time.Now()}, rowID: mark})
}

// NewMark names one sending of a queued call.
func NewMark() string { return newID() }

// OpenCall is a call without outcome. Frozen are the argument bytes of a queued one, exactly
// as they were validated; nil if it isn't queued, or if they were lost with a rebuilt
// database, or are Foreign, sealed with another server key: then it can't be sent.
type OpenCall struct {
	fleet.Call
	Frozen  []byte
	Foreign bool
}

// OpenCalls lists the calls without outcome that belong to nobody, by id: begun neither by
// this process nor by a replica that lives.
func (db *DB) OpenCalls(ctx context.Context) ([]OpenCall, error) {
	var list []OpenCall
	err := db.query(ctx, func(row scanner) error {
		var clear, sealed []byte
		c, err := scanCall(row, &clear, &sealed)
		if err == nil {
			open := OpenCall{Call: *c}
			open.Frozen, open.Foreign = db.thaw(string(c.ID), clear, sealed)
			list = append(list, open)
		}
		return err
	}, `SELECT `+callList+`, q.args, q.sealed FROM calls c LEFT JOIN queued q ON q.call_id = c.id WHERE c.finished_at IS NULL AND c.instance <> $1 AND c.instance NOT IN (SELECT instance FROM replicas) ORDER BY c.id`, db.Instance())
	return list, err
}

// adoptSlice bounds the calls that one transaction adopts.
const adoptSlice = 500

// Adopt makes open calls of a state that belong to nobody this process's own, and returns which.
// Calls that have ended or were sent meanwhile, or adopted by another replica, stay as they are.
func (db *DB) Adopt(ctx context.Context, state fleet.State, ids ...fleet.CallID) (mine []fleet.CallID, err error) {
	ids = slices.Clone(ids)
	slices.Sort(ids) // the order in which the writer's groups take them: see lockOrder
	for len(ids) > 0 {
		some := ids[:min(len(ids), adoptSlice)]
		ids = ids[len(some):]
		var got []fleet.CallID
		err := db.inTx(ctx, func(t *tx) error {
			got = got[:0] // the transaction may be tried again
			for _, id := range some {
				n, err := t.exec(ctx, `UPDATE calls SET instance = $2 WHERE id = $1 AND state = $3 AND finished_at IS NULL AND instance <> $2 AND instance NOT IN (SELECT instance FROM replicas)`, string(id), db.Instance(), string(state))
				if err != nil {
					return err
				}
				if n == 1 {
					got = append(got, id)
				}
			}
			return nil
		})
		if err != nil {
			return mine, err
		}
		mine = append(mine, got...)
	}
	return mine, nil
}

// sentRows are the statements of a MarkSent.
func sentRows(o *op, instance string) []statement {
	s := o.sent
	return []statement{
		{owner: o, must: true, query: sendCall, args: []any{string(s.id), orNull(s.boot), o.rowID, instance}},
		{owner: o, query: deleteQueued, args: []any{string(s.id)}},
		sentRow(o, instance),
	}
}

// neverSent tells that an outcome may be that of a call which was still queued. One that
// took time on an agent was sent, and MarkSent removed its bytes.
func neverSent(out *fleet.Outcome) bool { return out.TookUS == 0 && out.State != fleet.Succeeded }

// thaw finds the bytes of a queued call in its row.
func (db *DB) thaw(id string, clear, sealed []byte) (frozen []byte, foreign bool) {
	if sealed == nil {
		return clear, false
	}
	frozen, err := db.keys.Open(id, sealed)
	return frozen, err != nil
}

// frozenRow is a row of queued.
type frozenRow struct {
	id           string
	args, sealed []byte
}

// frozenOf reads the bytes of queued calls, in the writer's order.
func (t *tx) frozenOf(ctx context.Context, where string) (frozen []frozenRow, err error) {
	rows, err := t.sql.QueryContext(ctx, `SELECT call_id, args, sealed FROM queued `+where+` ORDER BY call_id`)
	if err != nil {
		return nil, err
	}
	return frozen, each(rows, func(row scanner) error {
		var f frozenRow
		err := row.Scan(&f.id, &f.args, &f.sealed)
		frozen = append(frozen, f)
		return err
	})
}

// SealQueued seals what is in clear of queued calls, from the version before or for its sake,
// unless a replica of that version may still have to read it.
func (db *DB) SealQueued(ctx context.Context) error {
	if db.older.Load() {
		return nil
	}
	var frozen []frozenRow
	err := db.inTx(ctx, func(t *tx) (err error) {
		frozen, err = t.frozenOf(ctx, `WHERE sealed IS NULL`)
		for _, f := range frozen {
			if err == nil {
				_, err = t.exec(ctx, `UPDATE queued SET args = $2, sealed = $3 WHERE call_id = $1`, f.id, blob(nil), db.keys.Seal(f.id, f.args))
			}
		}
		return err
	})
	if err == nil && len(frozen) > 0 {
		err = db.dialect.scrub(ctx, db.read)
	}
	return err
}

// refreeze puts back the bytes of those calls that are queued now.
func (t *tx) refreeze(ctx context.Context, frozen []frozenRow) error {
	for _, f := range frozen {
		var state fleet.State
		err := t.queryRow(ctx, `SELECT state FROM calls WHERE id = $1`, f.id).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) || (err == nil && state != fleet.Queued) {
			continue
		}
		if err == nil {
			_, err = t.exec(ctx, insertQueued, f.id, blob(f.args), f.sealed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkQueued refuses an intent that is half a queued one.
func checkQueued(in *fleet.Intent) error {
	if in.QueueUntil.IsZero() != (len(in.Frozen) == 0) {
		return fleet.Errorf(protocol.CodeInternal, "a queued call has an expiry and its argument bytes, another call neither")
	}
	return nil
}
