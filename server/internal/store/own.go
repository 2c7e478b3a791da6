package store

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	// ownWait is how long a starting server waits for one that is just stopping.
	ownWait = 5 * time.Second
	// ownProbe is how often the lock's connection is looked at, and how often a lost lock is
	// tried.
	ownProbe = time.Second
	// ownAnswer bounds a look.
	ownAnswer = 3 * time.Second
)

// errTaken says that another server has the database, or had it meanwhile.
var errTaken = errors.New("store: another server took the database")

// Ownership is the right to serve a database. On Postgres it hangs on a connection: when that
// is lost it's taken again, and isn't held until then. On SQLite it can't be lost.
type Ownership struct {
	db   *DB
	how  string // "serve" or "share"
	lock heldLock
	held atomic.Bool
	lost chan struct{}

	stop    context.CancelFunc
	watched chan struct{} // closed when nobody watches
}

// heldLock is a lock that another process can't have.
type heldLock struct {
	release func() error
	alive   func(context.Context) error          // nil: it's held while this process lives
	evict   func(context.Context, *sql.DB) error // ends the session it's held by, and no other
}

// Held tells whether this process may start calls. It follows the loss of the connection
// within ownProbe and ownAnswer.
func (o *Ownership) Held() bool { return o.held.Load() }

// Lost is closed when another server has taken the database: this one has to stop.
func (o *Ownership) Lost() <-chan struct{} { return o.lost }

// Release gives the database up.
func (o *Ownership) Release() error {
	o.stop()
	<-o.watched
	if !o.held.Swap(false) {
		return nil
	}
	return o.lock.release()
}

// Own makes this process the one server of the database: a second one would take the first
// one's open calls for orphans and end them in the record. Commands that administer beside a
// server don't need it. When a server has it already the error is a *fleet.Error with
// conflict.
func (db *DB) Own(ctx context.Context) (*Ownership, error) { return db.hold(ctx, "serve") }

func (db *DB) hold(ctx context.Context, how string) (*Ownership, error) {
	wait, cancel := context.WithTimeout(ctx, ownWait)
	defer cancel()
	lock, err := db.dialect.lock(wait, db.write, how)
	switch {
	case err == nil:
	case ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || wait.Err() != nil):
		return nil, fleet.Wrap(protocol.CodeConflict, err, "another Drover server is running on this data; stop it first, or give this one a data folder or database of its own (several on one database need the same --nats-url each)")
	default:
		return nil, fleet.Wrap(protocol.CodeUnavailable, err, "the lock of the server's data can't be taken: %s", db.dialect.hint())
	}
	o := &Ownership{db: db, how: how, lock: lock, lost: make(chan struct{}), watched: make(chan struct{})}
	if err := o.sign(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	o.held.Store(true)
	watch, stop := context.WithCancel(db.stopped)
	o.stop = stop
	go o.watch(watch)
	return o, nil
}

// sign writes who has the database, so that who lost the lock knows whether somebody else had
// it since.
func (o *Ownership) sign(ctx context.Context) error {
	return o.db.inTx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE store_state SET owner = $1 WHERE id = 1`, orNull(o.name()))
		return err
	})
}

// ServerKey returns which server key the database is served with. Where it was over, or none yet,
// it's key from now on.
func (db *DB) ServerKey(ctx context.Context, key, over string) (now string, err error) {
	err = db.inTx(ctx, func(t *tx) error {
		return t.queryRow(ctx, `UPDATE store_state SET server_key = CASE WHEN server_key IN ('', $2) THEN $1 ELSE server_key END WHERE id = 1 RETURNING server_key`, key, over).Scan(&now)
	})
	return now, err
}

// name is what this process signs with: those that share leave no name.
func (o *Ownership) name() string {
	if o.how == "share" {
		return ""
	}
	return o.db.Instance()
}

func (o *Ownership) watch(ctx context.Context) {
	defer close(o.watched)
	if o.lock.alive == nil {
		return
	}
	tick := time.NewTicker(ownProbe)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := o.look(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errTaken):
			o.db.log.Error("another Drover server has taken this one's database; this one must stop", "err", err)
			close(o.lost)
			return
		default:
			o.db.log.Warn("the lock of the server's database isn't held; nothing starts until it is", "err", err)
		}
	}
}

// look makes sure that the lock is held, or takes it again.
func (o *Ownership) look(ctx context.Context) error {
	// Not cancelled by Release, which would cost the connection and the lock with it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownAnswer)
	defer cancel()
	if o.held.Load() {
		err := o.lock.alive(ctx)
		if err == nil {
			return nil
		}
		o.held.Store(false)
		_ = o.lock.release() // the connection is gone, or can't be relied on
		o.db.log.Error("the connection that holds the lock of the server's database was lost; nothing starts until it's held again", "err", err)
	}
	return o.retake(ctx)
}

// retake takes the lock again, unless somebody else had it since.
func (o *Ownership) retake(ctx context.Context) error {
	try, cancel := context.WithTimeout(ctx, ownProbe)
	defer cancel()
	lock, err := o.db.dialect.lock(try, o.db.write, o.how)
	var owner sql.NullString
	if lookErr := o.db.queryRow(ctx, `SELECT owner FROM store_state WHERE id = 1`).Scan(&owner); lookErr != nil {
		if err == nil {
			err = lock.release()
		}
		return errors.Join(err, lookErr)
	}
	foreign := owner.String != o.name()
	switch {
	case err != nil && foreign:
		return errors.Join(errTaken, err)
	case err != nil: // perhaps the session that was lost lives on over there
		return errors.Join(err, o.lock.evict(ctx, o.db.write))
	case foreign && o.how == "serve":
		return errors.Join(errTaken, lock.release())
	case foreign:
		err = o.sign(ctx) // who was alone meanwhile has left the calls of living replicas alone
	}
	if err != nil {
		return errors.Join(err, lock.release())
	}
	o.lock = lock
	o.held.Store(true)
	o.db.log.Info("the lock of the server's database is held again")
	return nil
}
