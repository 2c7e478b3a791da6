// Package store holds all of Drover's SQL: one implementation for two engines, SQLite
// (the embedded default) and Postgres.
//
// Rules that every query keeps: times are BIGINT microseconds UTC, converted by micros and
// fromMicros alone; bytes are bound as []byte; ids are text made by the program; no engine
// functions; text that came from outside passes clean, which removes what Postgres can't
// hold and cuts it. What differs between the engines is behind dialect: sqlite.go and
// postgres.go.
//
// The record is written by one goroutine that groups what waits into shared, synced
// commits: RecordIntent and RecordOutcome return after the commit that holds their row.
package store

import (
	"context"
	"crypto/ed25519"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/atrest"
	"github.com/drover-fleet/drover/server/internal/store/pending"
	"github.com/drover-fleet/drover/server/internal/store/sqliteconf"
)

// Config says where the database is.
type Config struct {
	// DataDir holds drover.db when DatabaseURL is empty. It's made, for its owner alone,
	// if it isn't there.
	DataDir string
	// DatabaseURL is a postgres:// URL or a key=value connection string; empty for SQLite.
	DatabaseURL string
	// Key is the server's key, from which follows what is sealed. Without it nothing that's
	// sealed can be read, and calls that are recorded match nobody's.
	Key ed25519.PrivateKey
	// Log hears of what nobody waits for: polls and refusals that failed. nil: nothing.
	Log *slog.Logger
}

// pollInterval is how often a change that another process made is looked for.
const pollInterval = 500 * time.Millisecond

// pollTimeout bounds one look.
const pollTimeout = 5 * time.Second

// touchInterval is how often times of last use and last sight are written, and those of the
// other replicas read.
const touchInterval = 10 * time.Second

// DB is an open database. Its methods may be used by many goroutines at once.
type DB struct {
	dialect  dialect
	log      *slog.Logger
	instance atomic.Pointer[string] // names this open handle in the rows of the calls it started

	keys *atrest.Keys

	shared atomic.Bool // other processes serve the database too
	older  atomic.Bool // one of them is of the version before: it reads nothing that's sealed

	read, write *sql.DB

	snap    atomic.Pointer[Snapshot]
	refresh chan struct{} // holds one token: whoever has it loads the snapshot

	queue    chan *op
	held     *op            // the writer's own: first of the next group
	doubts   []fleet.CallID // the writer's own: see settleDoubts
	commits  atomic.Int64
	rows     atomic.Int64
	refusals *pending.Refusals
	touches  pending.Touches

	stop    context.CancelFunc // ends the background work
	stopped context.Context    // done once Close began
	wg      sync.WaitGroup
	closing sync.RWMutex // held for reading while an op is being queued
	closed  bool
	once    sync.Once

	pinged   sync.Mutex
	pingedAt time.Time
	pingErr  error
}

// Open opens the database and brings its schema up to date under a lock that other
// processes respect. A database that a newer Drover wrote is refused, unchanged.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	db := &DB{log: cfg.Log, queue: make(chan *op, queueDepth), refresh: make(chan struct{}, 1)}
	db.instance.Store(new(newID()))
	var err error
	if db.keys, err = atrest.New(cfg.Key); err != nil {
		return nil, err
	}
	if err := db.connect(ctx, cfg); err != nil {
		return nil, err
	}
	if err := db.begin(ctx); err != nil {
		return nil, errors.Join(err, db.write.Close(), db.read.Close())
	}
	return db, nil
}

// begin migrates, loads the snapshot and starts the background work.
func (db *DB) begin(ctx context.Context) error {
	if err := db.migrate(ctx); err != nil {
		return err
	}
	if err := db.dialect.check(ctx, db.write, db.log); err != nil {
		return err
	}
	db.snap.Store(emptySnapshot())
	if err := db.Refresh(ctx); err != nil {
		return err
	}
	db.stopped, db.stop = context.WithCancel(context.Background())
	db.refusals = pending.NewRefusals()
	db.wg.Add(2)
	// Neither is kept from ending the process by a panic: after one in the middle of a commit
	// nobody can say what is on record, and decisions go by what the other one reads.
	go db.writeLoop()
	go db.pollLoop()
	return nil
}

func (db *DB) connect(ctx context.Context, cfg Config) (err error) {
	if cfg.DatabaseURL != "" {
		db.dialect, err = newPostgres(cfg.DatabaseURL)
	} else {
		var path string
		path, err = sqliteconf.File(cfg.DataDir)
		db.dialect = &sqliteDialect{path: path}
	}
	if err != nil {
		return err
	}
	db.read, db.write, err = db.dialect.open()
	if err != nil {
		return err
	}
	err = db.write.PingContext(ctx)
	// SQLite turns some away at once while another process makes the file a WAL database.
	for n := 1; err != nil && n < 2*maxBackoff && db.dialect.retryable(err) && !db.dialect.lost(err) && backoff(ctx, min(n, maxBackoff)); n++ {
		err = db.write.PingContext(ctx)
	}
	if err != nil {
		return errors.Join(fleet.Wrap(protocol.CodeUnavailable, err, "the database can't be opened: %s", db.dialect.hint()), db.write.Close(), db.read.Close())
	}
	return nil
}

// Engine is "sqlite" or "postgres".
func (db *DB) Engine() string { return db.dialect.name() }

// Instance names this open handle; it's new at each Open, and at Rejoin. Calls carry it, so that
// those a dead process left open are known.
func (db *DB) Instance() string { return *db.instance.Load() }

// Close writes what is queued, refusals too, and closes the database. What is asked of the
// record afterwards fails with unavailable.
func (db *DB) Close() error {
	var err error
	db.once.Do(func() {
		db.closing.Lock()
		db.closed = true
		close(db.queue)
		db.closing.Unlock()
		db.stop()
		db.wg.Wait()
		err = errors.Join(db.write.Close(), db.read.Close())
	})
	return err
}

// pingEvery bounds how often Ping writes.
const pingEvery = time.Second

// Ping tells whether the database takes writes, for readiness: a full disk still answers
// reads. Within a second it repeats what it found.
func (db *DB) Ping(ctx context.Context) error {
	db.pinged.Lock()
	defer db.pinged.Unlock()
	if time.Since(db.pingedAt) < pingEvery {
		return db.pingErr
	}
	err := db.inTx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE store_state SET policy_version = policy_version WHERE id = 1`)
		return err
	})
	db.pingedAt, db.pingErr = time.Now(), db.failed(err)
	return db.pingErr
}

// pollLoop watches for other processes' changes and writes the touches.
func (db *DB) pollLoop() {
	defer db.wg.Done()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	touch := time.NewTicker(touchInterval)
	defer touch.Stop()
	failing := false
	for {
		select {
		case <-db.stopped.Done():
			if err := db.flushTouches(context.Background()); err != nil {
				db.log.Warn("times of last use were not written", "error", err)
			}
			return
		case <-poll.C:
			err := db.poll()
			if err != nil && !failing && db.stopped.Err() == nil {
				db.log.Error("the database doesn't answer; decisions use what was known", "error", err)
			}
			failing = err != nil
		case <-touch.C:
			err := errors.Join(db.flushTouches(db.stopped), db.readSights(db.stopped))
			if err != nil && db.stopped.Err() == nil {
				db.log.Warn("times of last use were not written, or not read; tried again soon", "error", err)
			}
		}
	}
}

func (db *DB) poll() error {
	ctx, cancel := context.WithTimeout(db.stopped, pollTimeout)
	defer cancel()
	return db.Refresh(ctx)
}

// newID makes a UUIDv7 in its text form; within a process later ones sort after earlier.
func newID() string { return uuid.Must(uuid.NewV7()).String() }
