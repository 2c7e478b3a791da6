package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// rebuildSlice bounds the rows that are held at one time.
const rebuildSlice = 1000

const restoreCall = `INSERT INTO calls (id, principal, name, client, edge, agent, generation, tool, effect, args, commitment, idempotency_key, match_hash, instance, state, code, reason, message, took_us, created_at, deadline, boot, queue_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, '', $13, $14, '', '', '', 0, $15, $16, $17, $18)`

// RebuildCalls makes the calls anew from the record, in one transaction, and returns how
// many there are. What the record doesn't hold is gone then: salts, results, messages, and
// the hashes by which repeats join (a repeated idempotency key is a conflict from then on,
// never a second execution). The frozen bytes of calls that are still queued stay. A row whose
// body doesn't match its leaf stops it, and nothing is changed. It's a repair: no server may be running on the database.
func (db *DB) RebuildCalls(ctx context.Context) (int, error) {
	total := 0
	err := db.inTx(ctx, func(t *tx) error {
		frozen, err := t.frozenOf(ctx, ``)
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, `DELETE FROM calls`); err != nil {
			return err
		}
		if total, err = t.replay(ctx); err != nil {
			return err
		}
		return t.refreeze(ctx, frozen)
	})
	return total, err
}

// replay applies the rows kind by kind, in the order of a call's life: the clock of who
// wrote a later one may have been behind. It returns how many intents there were.
func (t *tx) replay(ctx context.Context) (int, error) {
	n, err := t.replayAll(ctx, KindIntent, t.replayIntent)
	if err != nil {
		return 0, err
	}
	for _, step := range []struct {
		kind  Kind
		apply func(context.Context, *Record) error
	}{{KindSent, t.replaySent}, {KindCancel, t.replayCancel}, {KindOutcome, t.replayOutcome}, {KindEvidence, t.replayEvidence}} {
		if _, err := t.replayAll(ctx, step.kind, step.apply); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// replayAll applies the rows of one kind and returns how many there were.
func (t *tx) replayAll(ctx context.Context, kind Kind, apply func(context.Context, *Record) error) (int, error) {
	total := 0
	for after := ""; ; {
		rows, err := t.recordSlice(ctx, kind, after)
		if err != nil || len(rows) == 0 {
			return total, err
		}
		for i := range rows {
			r := &rows[i]
			if !bytes.Equal(Leaf(r.Body), r.Leaf) {
				return 0, fmt.Errorf("store: the record's row %s was changed: its body isn't the one that was hashed", r.ID)
			}
			if err := apply(ctx, r); err != nil {
				return 0, err
			}
		}
		total += len(rows)
		after = rows[len(rows)-1].ID
	}
}

func (t *tx) recordSlice(ctx context.Context, kind Kind, after string) ([]Record, error) {
	rows, err := t.sql.QueryContext(ctx, t.db.dialect.rebind(`SELECT id, kind, body, leaf FROM record WHERE id > $1 AND kind = $2 ORDER BY id LIMIT $3`), after, string(kind), rebuildSlice)
	if err != nil {
		return nil, err
	}
	var out []Record
	err = each(rows, func(row scanner) error {
		var r Record
		err := row.Scan(&r.ID, (*string)(&r.Kind), &r.Body, &r.Leaf)
		out = append(out, r)
		return err
	})
	return out, err
}

func (t *tx) replayIntent(ctx context.Context, r *Record) error {
	var b body.Intent
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return unreadable(r, err)
	}
	at, err1 := body.Unstamp(b.At)
	deadline, err2 := body.Unstamp(b.Deadline)
	commitment, err3 := hex.DecodeString(b.Commitment)
	until, err4 := body.Unstamp(b.QueueUntil)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return unreadable(r, err)
		}
	}
	if b.Key != "" { // the latest call of a key has it
		if _, err := t.exec(ctx, `UPDATE calls SET idempotency_key = NULL WHERE principal = $1 AND idempotency_key = $2`, b.Principal, b.Key); err != nil {
			return err
		}
	}
	state := firstState(&fleet.Intent{QueueUntil: until})
	_, err := t.exec(ctx, restoreCall, b.CallID, b.Principal, b.Name, b.Client, b.Edge, b.Agent, b.Generation, b.Tool, b.Effect,
		string(b.Args), blob(commitment), orNull(b.Key), b.Instance, string(state), micros(at), micros(deadline), orNull(b.Boot), micros(until))
	return err
}

func (t *tx) replaySent(ctx context.Context, r *Record) error {
	var b body.Sent
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return unreadable(r, err)
	}
	n, err := t.exec(ctx, sendCall, b.CallID, orNull(b.Boot), r.ID, b.Instance)
	if err == nil && n != 1 {
		err = fmt.Errorf("store: the record's row %s says that a call was sent which wasn't queued", r.ID)
	}
	return err
}

func (t *tx) replayEvidence(ctx context.Context, r *Record) error {
	var b body.Evidence
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return unreadable(r, err)
	}
	at, err := body.Unstamp(b.At)
	if err != nil {
		return unreadable(r, err)
	}
	n, err := t.exec(ctx, learnCall, b.CallID, b.Text, micros(at), r.ID)
	if err == nil && n != 1 {
		err = fmt.Errorf("store: the record's row %s is evidence of a call whose outcome is known, or a second one", r.ID)
	}
	return err
}

func unreadable(r *Record, err error) error {
	return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
}

func (t *tx) replayOutcome(ctx context.Context, r *Record) error {
	var b body.Outcome
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return unreadable(r, err)
	}
	at, err := body.Unstamp(b.At)
	if err != nil {
		return unreadable(r, err)
	}
	var exit sql.NullInt64
	if b.ExitCode != nil {
		exit = sql.NullInt64{Int64: int64(*b.ExitCode), Valid: true}
	}
	commitment, err := hex.DecodeString(b.Commitment)
	if err != nil {
		return unreadable(r, err)
	}
	if len(commitment) == 0 {
		commitment = nil
	}
	n, err := t.exec(ctx, finishCall, b.CallID, b.State, b.Code, b.Reason, "", exit, b.TookUS, commitment, nil, micros(at), r.ID)
	if err == nil && n != 1 {
		err = fmt.Errorf("store: the record's row %s is an outcome without its call's intent, or a second one", r.ID)
	}
	return err
}
