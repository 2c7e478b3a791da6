package store

import (
	"context"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Replica is one of the processes that serve a database together.
type Replica struct {
	Instance string
	// Beat rises while the replica lives. Whoever sees the same number for long by its own
	// clock takes it for dead: no clocks are compared.
	Beat int64
}

// ErrBuried says that this replica was taken for dead: its open calls belong to others.
var ErrBuried = errors.New("store: this replica was taken for dead by another one")

// Share makes this process one of several that serve the database. Beside a
// server that has it alone the error is conflict, as it is for SQLite.
func (db *DB) Share(ctx context.Context) (*Ownership, error) {
	if db.Engine() != "postgres" {
		return nil, fleet.Errorf(protocol.CodeConflict, "several replicas need a PostgreSQL database: give --database-url beside --nats-url")
	}
	o, err := db.hold(ctx, "share")
	if err == nil {
		db.shared.Store(true)
	}
	return o, err
}

// Enlist tells the others that this replica lives; Beat keeps it so.
func (db *DB) Enlist(ctx context.Context) error {
	err := db.enlist(ctx, db.Instance())
	if err == nil {
		_, err = db.Replicas(ctx) // of which version they are
	}
	return err
}

// Rejoin enlists a process that was buried, under another name: what it has written under the old
// one, or is writing still, belongs to nobody, and may be adopted.
func (db *DB) Rejoin(ctx context.Context) error {
	name := newID()
	err := db.enlist(ctx, name)
	if err == nil {
		db.instance.Store(&name)
	}
	return err
}

func (db *DB) enlist(ctx context.Context, name string) error {
	return db.inTx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO replicas (instance, beat, started_at, seals) VALUES ($1, 0, $2, 1) ON CONFLICT (instance) DO NOTHING`, name, micros(time.Now()))
		return err
	})
}

// Beat raises this replica's beat. ErrBuried: see there; Rejoin lets it begin anew.
func (db *DB) Beat(ctx context.Context) error {
	buried := false
	err := db.inTx(ctx, func(t *tx) error {
		n, err := t.exec(ctx, `UPDATE replicas SET beat = beat + 1 WHERE instance = $1`, db.Instance())
		buried = n == 0
		return err
	})
	if err == nil && buried {
		return ErrBuried
	}
	return err
}

// Resign ends this replica's membership: its open calls belong to nobody from then on.
func (db *DB) Resign(ctx context.Context) error {
	return db.inTx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `DELETE FROM replicas WHERE instance = $1`, db.Instance())
		return err
	})
}

// Replicas lists the members, this one too. While one of them is of the version before, what that
// has to read is written as it reads it; no other of that version starts any more.
func (db *DB) Replicas(ctx context.Context) ([]Replica, error) {
	var out []Replica
	older := false
	err := db.query(ctx, func(row scanner) error {
		var r Replica
		var seals int
		err := row.Scan(&r.Instance, &r.Beat, &seals)
		out, older = append(out, r), older || seals == 0
		return err
	}, `SELECT instance, beat, seals FROM replicas ORDER BY instance`)
	if err == nil {
		db.older.Store(older)
	}
	return out, err
}

// Bury removes a replica whose beat hasn't moved from r.Beat; false when it has, or when it's
// gone already.
func (db *DB) Bury(ctx context.Context, r Replica) (bool, error) {
	var n int64
	err := db.inTx(ctx, func(t *tx) (err error) {
		n, err = t.exec(ctx, `DELETE FROM replicas WHERE instance = $1 AND beat = $2`, r.Instance, r.Beat)
		return err
	})
	return n > 0, err
}
