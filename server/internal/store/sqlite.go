package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/drover-fleet/drover/server/internal/store/filelock"
)

type sqliteDialect struct {
	path  string
	stmts stmtCache
}

func (*sqliteDialect) name() string         { return "sqlite" }
func (*sqliteDialect) goose() goose.Dialect { return goose.DialectSQLite3 }
func (d *sqliteDialect) hint() string {
	return "look at the disk and the permissions of " + filepath.Base(d.path)
}

// open makes one connection that writes and a few that read. Each commit is synced
// (synchronous FULL); fdatasync where there is one, as SQLite's own builds do.
func (d *sqliteDialect) open() (read, write *sql.DB, err error) {
	if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
		return nil, nil, err
	}
	path := filepath.ToSlash(d.path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // file:///C:/…
	}
	dsn := (&url.URL{Scheme: "file", Path: path}).String() +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=journal_size_limit(67108864)&_dqs=0"
	if write, err = sql.Open("sqlite", dsn+"&_txlock=immediate"); err != nil {
		return nil, nil, err
	}
	write.SetMaxOpenConns(1)
	if read, err = sql.Open("sqlite", dsn+"&_query_only=1"); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(4)
	read.SetMaxIdleConns(4)
	return read, write, nil
}

func (*sqliteDialect) check(ctx context.Context, write *sql.DB, _ *slog.Logger) error {
	var mode string
	var sync int
	err := errors.Join(write.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode), write.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&sync))
	if err == nil && (mode != "wal" || sync != 2) {
		err = fmt.Errorf("store: SQLite runs with journal_mode=%s synchronous=%d; the record needs wal and 2 (is the data folder on a network file system?)", mode, sync)
	}
	return err
}

func (d *sqliteDialect) lock(ctx context.Context, _ *sql.DB, what string) (heldLock, error) {
	if what == "migrate" {
		what = "lock"
	}
	release, err := filelock.Lock(ctx, d.path+"."+what)
	return heldLock{release: release}, err
}

// rebind makes $1 ?1: SQLite takes $1 for a name and numbers names as they appear.
func (*sqliteDialect) rebind(query string) string { return bySQLite(query) }

func bySQLite(query string) string { return strings.ReplaceAll(query, "$", "?") }

func (*sqliteDialect) snapshotIsolation() sql.IsolationLevel { return sql.LevelDefault }

func sqliteCode(err error) int {
	var se *sqlite.Error
	if errors.As(err, &se) {
		return se.Code()
	}
	return 0
}

func (*sqliteDialect) retryable(err error) bool {
	c := sqliteCode(err) & 0xff
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_LOCKED
}
func (*sqliteDialect) lost(error) bool         { return false }
func (*sqliteDialect) diskFull(err error) bool { return sqliteCode(err)&0xff == sqlite3.SQLITE_FULL }
func (*sqliteDialect) duplicate(err error) bool {
	c := sqliteCode(err)
	return c == sqlite3.SQLITE_CONSTRAINT_UNIQUE || c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

// stmtCache keeps the hot statements prepared on the writing pool.
type stmtCache struct {
	mu sync.Mutex
	by map[string]*sql.Stmt
}

// warm prepares what isn't prepared yet. It must not run inside a transaction: the pool
// has one connection.
func (c *stmtCache) warm(ctx context.Context, db *sql.DB, queries []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.by) == len(queries) {
		return nil
	}
	c.by = make(map[string]*sql.Stmt, len(queries))
	for _, q := range queries {
		s, err := db.PrepareContext(ctx, bySQLite(q))
		if err != nil {
			return err
		}
		c.by[q] = s
	}
	return nil
}

// sqliteGroup runs prepared statements one after the other; there's no network between.
type sqliteGroup struct {
	ctx   context.Context
	stmts *stmtCache
	tx    *sql.Tx
}

func (d *sqliteDialect) beginGroup(ctx context.Context, write *sql.DB) (groupTx, error) {
	// Without a cancellable context: SQLite's own busy timeout bounds each statement, and the
	// driver would start a goroutine for every one of them to watch it.
	ctx = context.WithoutCancel(ctx)
	if err := d.stmts.warm(ctx, write, hotQueries()); err != nil {
		return nil, err
	}
	tx, err := write.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &sqliteGroup{ctx: ctx, stmts: &d.stmts, tx: tx}, nil
}

func (g *sqliteGroup) run(_ context.Context, list []statement) error {
	var lost lostSteps
	for i := range list {
		if n := len(lost); n > 0 && lost[n-1] == list[i].owner {
			continue // what isn't to happen
		}
		err := g.one(g.ctx, &list[i])
		switch {
		case errors.Is(err, errNoRows):
			lost = append(lost, list[i].owner)
		case err != nil:
			return &stepError{op: list[i].owner, err: err}
		}
	}
	if lost != nil {
		return lost
	}
	return nil
}

func (g *sqliteGroup) one(ctx context.Context, s *statement) error {
	stmt := g.stmts.by[s.query]
	if stmt == nil {
		return errors.New("store: a statement of the writer isn't among hotQueries")
	}
	stmt = g.tx.StmtContext(ctx, stmt)
	if s.scan != nil {
		rows, err := stmt.QueryContext(ctx, s.args...)
		if err != nil {
			return err
		}
		return each(rows, s.scan)
	}
	res, err := stmt.ExecContext(ctx, s.args...)
	if err != nil || !s.must {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errNoRows)
	}
	return nil
}

func (g *sqliteGroup) commitWith(ctx context.Context, list []statement) error {
	if err := g.run(ctx, list); err != nil {
		return err
	}
	return g.tx.Commit()
}

func (g *sqliteGroup) end() error { return ignoreDone(g.tx.Rollback()) }
