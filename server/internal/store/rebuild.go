package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// rebuildSlice bounds the rows that are held at one time.
const rebuildSlice = 1000

const restoreCall = `INSERT INTO calls (id, principal, name, client, edge, agent, generation, tool, effect, args, commitment, idempotency_key, match_hash, instance, state, code, reason, message, took_us, created_at, deadline)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, '', $13, 'dispatched', '', '', '', 0, $14, $15)`

// RebuildCalls makes the calls anew from the record, in one transaction, and returns how
// many there are. What the record doesn't hold is gone then: salts, results, messages, and
// the hashes by which repeats join (a repeated idempotency key is a conflict from then on,
// never a second execution). A row whose body doesn't match its leaf stops it, and nothing
// is changed. It's a repair: no server may be running on the database.
func (db *DB) RebuildCalls(ctx context.Context) (int, error) {
	total := 0
	err := db.inTx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `DELETE FROM calls`); err != nil {
			return err
		}
		// Intents first: the clock of who wrote an outcome may have been behind.
		n, err := t.replayAll(ctx, KindIntent, t.replayIntent)
		if err != nil {
			return err
		}
		total = n
		_, err = t.replayAll(ctx, KindOutcome, t.replayOutcome)
		return err
	})
	return total, err
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
	var b intentBody
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
	}
	at, err1 := unstamp(b.At)
	deadline, err2 := unstamp(b.Deadline)
	commitment, err3 := hex.DecodeString(b.Commitment)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
		}
	}
	_, err := t.exec(ctx, restoreCall, b.CallID, b.Principal, b.Name, b.Client, b.Edge, b.Agent, b.Generation, b.Tool, b.Effect,
		string(b.Args), blob(commitment), orNull(b.Key), b.Instance, micros(at), micros(deadline))
	return err
}

func (t *tx) replayOutcome(ctx context.Context, r *Record) error {
	var b outcomeBody
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
	}
	at, err := unstamp(b.At)
	if err != nil {
		return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
	}
	var exit sql.NullInt64
	if b.ExitCode != nil {
		exit = sql.NullInt64{Int64: int64(*b.ExitCode), Valid: true}
	}
	commitment, err := hex.DecodeString(b.Commitment)
	if err != nil {
		return fmt.Errorf("store: the record's row %s can't be read: %w", r.ID, err)
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

// unstamp reverses stamp.
func unstamp(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, s)
}
