package store

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// txAttempts bounds how often a transaction is tried that met another one.
const txAttempts = 8

// txPatience bounds the time in which another attempt may begin.
const txPatience = 5 * time.Second

// tx is a write transaction; its SQL is written with $1, $2 … for both engines.
type tx struct {
	db  *DB
	sql *sql.Tx
}

func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := t.sql.ExecContext(ctx, t.db.dialect.rebind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t *tx) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return t.sql.QueryRowContext(ctx, t.db.dialect.rebind(query), args...)
}

// bump moves the policy version and returns the new one. Two transactions that change
// policy wait for each other here, so that versions become visible in order: it's the
// first statement of each.
func (t *tx) bump(ctx context.Context) (int64, error) {
	var v int64
	err := t.queryRow(ctx, `UPDATE store_state SET policy_version = policy_version + 1 WHERE id = 1 RETURNING policy_version`).Scan(&v)
	return v, err
}

// inTx runs fn in a write transaction and commits. When the engine says that another
// transaction was in the way, everything is tried again, so fn must not have effects
// beyond the transaction. Errors of fn that are *fleet.Error come back unchanged, others
// as unavailable.
func (db *DB) inTx(ctx context.Context, fn func(*tx) error) error {
	var err error
	until := time.Now().Add(txPatience)
	for attempt := range txAttempts {
		if attempt > 0 && (time.Now().After(until) || !backoff(ctx, attempt)) {
			break
		}
		err = db.tryTx(ctx, fn)
		var fe *fleet.Error
		if err == nil || errors.As(err, &fe) || !db.dialect.retryable(err) {
			break
		}
	}
	if errors.Is(err, errUnchanged) {
		return errUnchanged
	}
	return db.failed(err)
}

func (db *DB) tryTx(ctx context.Context, fn func(*tx) error) error {
	t, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(&tx{db: db, sql: t}); err != nil {
		return errors.Join(err, ignoreDone(t.Rollback()))
	}
	err = t.Commit()
	if err != nil && db.dialect.lost(err) {
		// Not tried again: it may have happened.
		return fleet.Wrap(protocol.CodeUnavailable, err, "the database's answer was lost: look whether the change was made before you repeat it")
	}
	return err
}

// errUnchanged is returned by a change that found nothing to do: it's rolled back and
// succeeds.
var errUnchanged = errors.New("store: nothing to change")

// changePolicy is inTx for what decisions depend on: it moves the policy version, writes
// the administrative row beside the change, and lets the snapshot follow before it returns.
// An event without Action writes no row: such a change is the host's own (facts).
func (db *DB) changePolicy(ctx context.Context, ev fleet.AdminEvent, fn func(t *tx, rev int64) error) error {
	err := db.inTx(ctx, func(t *tx) error {
		rev, err := t.bump(ctx)
		if err != nil {
			return err
		}
		if err := fn(t, rev); err != nil {
			return err
		}
		return t.recordAdmin(ctx, ev)
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollTimeout) // also when its caller has gone meanwhile
	defer cancel()
	if err := db.Refresh(ctx); err != nil {
		db.log.Warn("a change was made, and couldn't be read back: it counts here from the next poll on, if the database answers", "error", err)
	}
	return nil
}

// notFound makes the engine's "no rows" a not_found with this message.
func notFound(err error, message string) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fleet.Errorf(protocol.CodeNotFound, "%s", message)
	}
	return err
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// maxBackoff bounds the attempts by which backoff grows: about 250 ms.
const maxBackoff = 8

// backoff waits a random time that grows with the attempt; false when ctx ended first.
func backoff(ctx context.Context, attempt int) bool {
	timer := time.NewTimer(time.Millisecond + rand.N(time.Millisecond<<attempt))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// queryRow reads one row outside a transaction.
func (db *DB) queryRow(ctx context.Context, query string, args ...any) *sql.Row {
	return db.read.QueryRowContext(ctx, db.dialect.rebind(query), args...)
}

// query reads rows outside a transaction and hands each to scan.
func (db *DB) query(ctx context.Context, scan func(scanner) error, query string, args ...any) error {
	rows, err := db.read.QueryContext(ctx, db.dialect.rebind(query), args...)
	if err != nil {
		return db.failed(err)
	}
	return db.failed(each(rows, scan))
}

// scanner is a row being read.
type scanner interface{ Scan(dest ...any) error }

func each(rows *sql.Rows, scan func(scanner) error) error {
	for rows.Next() {
		if err := scan(rows); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// failed turns an error of the engine into one that says what to do; *fleet.Error and nil
// pass unchanged.
func (db *DB) failed(err error) error {
	if err == nil {
		return nil
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe
	}
	switch {
	case db.dialect.diskFull(err):
		return fleet.Wrap(protocol.CodeUnavailable, err, "the disk that holds Drover's database is full: free some space there, then try again")
	case errors.Is(err, context.Canceled):
		return fleet.Wrap(protocol.CodeCancelled, err, "the request ended before the database had answered")
	case db.dialect.lost(err):
		return fleet.Wrap(protocol.CodeUnavailable, err, "Drover's database doesn't answer: it's stopped, starting, or can't be reached; %s, then try again", db.dialect.hint())
	case db.dialect.retryable(err):
		return fleet.Wrap(protocol.CodeUnavailable, err, "another program holds a lock in Drover's database (a long transaction, or a backup): try again in a moment")
	default:
		return fleet.Wrap(protocol.CodeUnavailable, err, "Drover's database doesn't work now: the server's log has the cause; %s", db.dialect.hint())
	}
}
