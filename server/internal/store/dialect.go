package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"

	"github.com/pressly/goose/v3"
)

// dialect is what differs between the engines.
type dialect interface {
	name() string
	goose() goose.Dialect
	hint() string // what an operator looks at when the engine fails
	open() (read, write *sql.DB, err error)
	check(ctx context.Context, write *sql.DB, log *slog.Logger) error
	lock(ctx context.Context, db *sql.DB, what string) (heldLock, error) // "migrate", "serve", or "share": serve beside others that share
	rebind(query string) string
	snapshotIsolation() sql.IsolationLevel // of a read that sees one moment
	retryable(err error) bool              // another transaction or a lost connection was in the way
	lost(err error) bool                   // the answer was lost: what was asked may have happened
	diskFull(err error) bool
	scrub(ctx context.Context, read *sql.DB) error // takes out of the files what was deleted or written over, as far as it can
	duplicate(err error) bool
	beginGroup(ctx context.Context, write *sql.DB) (groupTx, error)
}

// errNoRows is a statement that changed no row where it had to change one: somebody else
// was first.
var errNoRows = errors.New("store: the row was changed by somebody else")

// statement is one step of a group's transaction.
type statement struct {
	query string
	args  []any
	scan  func(scanner) error // not nil: reads at most one row
	must  bool                // has to change exactly one row, else errNoRows
	owner *op                 // whose it is
}

// groupTx is a write transaction that runs lists of statements: one round trip a list on
// Postgres.
type groupTx interface {
	run(ctx context.Context, list []statement) error
	// commitWith runs a list and commits, unless there are lostSteps; after an error the
	// caller calls end.
	commitWith(ctx context.Context, list []statement) error
	// end rolls back unless it was committed, and gives the connection back.
	end() error
}

// lostSteps are the ops of a list whose statements that must change a row changed none:
// somebody else was first. The rest of the list may have run.
type lostSteps []*op

func (lostSteps) Error() string { return errNoRows.Error() }
func (lostSteps) Unwrap() error { return errNoRows }

// stepError names the op whose statement failed.
type stepError struct {
	op  *op
	err error
}

func (e *stepError) Error() string { return e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }
