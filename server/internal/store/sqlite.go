package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/drover-fleet/drover/server/internal/store/filelock"
	"github.com/drover-fleet/drover/server/internal/store/prepared"
	"github.com/drover-fleet/drover/server/internal/store/sqliteconf"
)

type sqliteDialect struct{ path string }

func (*sqliteDialect) name() string         { return "sqlite" }
func (*sqliteDialect) goose() goose.Dialect { return goose.DialectSQLite3 }
func (d *sqliteDialect) hint() string {
	return "look at the disk and the permissions of " + filepath.Base(d.path)
}

func (d *sqliteDialect) open() (read, write *sql.DB, err error) {
	return sqliteconf.Pools(d.path, bySQLite)
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

// scrub empties the log: in the file what was deleted is overwritten. It keeps no writer waiting
// for those who read: while they have the log it's tried again, and else at the next time.
func (*sqliteDialect) scrub(ctx context.Context, read *sql.DB) error {
	conn, err := read.Conn(ctx)
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, `PRAGMA busy_timeout = 0`)
	for n, busy := 1, 1; err == nil && busy != 0 && n < maxBackoff && backoff(ctx, n); n++ {
		var log, done int
		err = conn.QueryRowContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &log, &done)
	}
	_, restored := conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA busy_timeout = 5000`)
	return errors.Join(err, restored, conn.Close())
}

func (*sqliteDialect) lost(error) bool         { return false }
func (*sqliteDialect) diskFull(err error) bool { return sqliteCode(err)&0xff == sqlite3.SQLITE_FULL }
func (*sqliteDialect) duplicate(err error) bool {
	c := sqliteCode(err)
	return c == sqlite3.SQLITE_CONSTRAINT_UNIQUE || c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

// sqliteGroup runs prepared statements one after the other; there's no network between.
type sqliteGroup struct {
	conn *sql.Conn
	done bool // nothing is begun
}

func (d *sqliteDialect) beginGroup(ctx context.Context, write *sql.DB) (groupTx, error) {
	conn, err := write.Conn(context.WithoutCancel(ctx)) // who has it is bounded by SQLite's busy timeout
	if err != nil {
		return nil, err
	}
	g := &sqliteGroup{conn: conn}
	if err := g.raw(func(c *prepared.Conn) error { _, err := c.Exec("BEGIN IMMEDIATE"); return err }); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return g, nil
}

func (g *sqliteGroup) raw(fn func(*prepared.Conn) error) error {
	return g.conn.Raw(func(dc any) error { return fn(dc.(*prepared.Conn)) })
}

func (g *sqliteGroup) run(_ context.Context, list []statement) error {
	return g.raw(func(c *prepared.Conn) error { return runAll(c, list) })
}

func runAll(c *prepared.Conn, list []statement) error {
	var lost lostSteps
	for i := range list {
		if n := len(lost); n > 0 && lost[n-1] == list[i].owner {
			continue // what isn't to happen
		}
		err := runOne(c, &list[i])
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

func runOne(c *prepared.Conn, s *statement) error {
	if s.scan != nil {
		return c.Query(s.query, s.args, func(r prepared.Row) error { return s.scan(r) })
	}
	n, err := c.Exec(s.query, s.args...)
	if err == nil && s.must && n != 1 {
		err = errNoRows
	}
	return err
}

func (g *sqliteGroup) commitWith(_ context.Context, list []statement) error {
	return g.raw(func(c *prepared.Conn) error {
		err := runAll(c, list)
		if err == nil {
			_, err = c.Exec("COMMIT")
			g.done = err == nil
		}
		return err
	})
}

// end gives up a connection whose transaction can't be ended: the next group's would be part
// of it. SQLite has rolled back by itself after some errors, and says so with its plainest.
func (g *sqliteGroup) end() error {
	if g.done {
		return g.conn.Close()
	}
	err := g.raw(func(c *prepared.Conn) error {
		_, err := c.Exec("ROLLBACK")
		if err != nil && sqliteCode(err) != sqlite3.SQLITE_ERROR {
			return errors.Join(err, driver.ErrBadConn)
		}
		return nil
	})
	return errors.Join(err, g.conn.Close())
}
