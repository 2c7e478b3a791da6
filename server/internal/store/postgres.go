package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/drover-fleet/drover/server/internal/store/pgconf"
)

type pgDialect struct{ cfg *pgx.ConnConfig }

func newPostgres(dsn string) (*pgDialect, error) {
	cfg, err := pgconf.Parse(dsn)
	return &pgDialect{cfg: cfg}, err
}

func (*pgDialect) name() string         { return "postgres" }
func (*pgDialect) goose() goose.Dialect { return goose.DialectPostgres }
func (d *pgDialect) hint() string {
	return fmt.Sprintf("look at Postgres on %s:%d", d.cfg.Host, d.cfg.Port)
}

func (d *pgDialect) open() (read, write *sql.DB, err error) {
	return pgconf.Pool(d.cfg), pgconf.Pool(d.cfg), nil
}

func (*pgDialect) check(ctx context.Context, write *sql.DB, log *slog.Logger) error {
	var commit, fsync string
	err := errors.Join(write.QueryRowContext(ctx, `SHOW synchronous_commit`).Scan(&commit), write.QueryRowContext(ctx, `SHOW fsync`).Scan(&fsync))
	if err == nil && commit != "on" {
		err = fmt.Errorf("store: Postgres runs this session with synchronous_commit=%s; the record needs on", commit)
	}
	if err == nil && fsync != "on" {
		log.Warn("Postgres runs with fsync off: the record won't survive a crash of that machine")
	}
	return err
}

// lock is an advisory lock of this database and schema, held by a connection of its own. It's
// tried again and again, never queued for: a session that waits in Postgres outlives a client
// that is gone, and those who come after it, sharing the lock, would wait behind it.
func (*pgDialect) lock(ctx context.Context, db *sql.DB, what string) (lock heldLock, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return lock, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	var schema sql.NullString
	var pid int64
	var began time.Time
	h := fnv.New64a()
	err = conn.QueryRowContext(ctx, `SELECT current_schema(), pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`).Scan(&schema, &pid, &began)
	if err != nil {
		return lock, err
	}
	take, give := `SELECT pg_try_advisory_lock($1)`, `SELECT pg_advisory_unlock($1)`
	if what == "share" { // the same lock, shared
		what, take, give = "serve", `SELECT pg_try_advisory_lock_shared($1)`, `SELECT pg_advisory_unlock_shared($1)`
	}
	_, _ = io.WriteString(h, "drover/"+what+"/"+schema.String)
	key := int64(h.Sum64())
	if err := pgconf.TryLock(ctx, conn, take, key); err != nil {
		return lock, err
	}
	lock.release = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ownAnswer)
		defer cancel()
		_, err := conn.ExecContext(ctx, give, key)
		return errors.Join(err, conn.Close())
	}
	lock.alive = func(ctx context.Context) error { _, err := conn.ExecContext(ctx, `SELECT 1`); return err }
	lock.evict = func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2`, pid, began)
		return err
	}
	return lock, nil
}

func (*pgDialect) rebind(query string) string { return query }

func (*pgDialect) snapshotIsolation() sql.IsolationLevel { return sql.LevelRepeatableRead }

func pgCode(err error) string {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return pe.Code
	}
	return ""
}

// retryable: serialisation, deadlock, lock timeout, or lost.
func (d *pgDialect) retryable(err error) bool {
	c := pgCode(err)
	return c == "40001" || c == "40P01" || c == "55P03" || d.lost(err)
}

// lost: the server is restarting, or the connection is gone.
func (*pgDialect) lost(err error) bool {
	switch c := pgCode(err); {
	case c == "57P01", c == "57P02", c == "57P03", strings.HasPrefix(c, "08"):
		return true
	case c != "":
		return false
	}
	var ne net.Error
	return pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) || errors.As(err, &ne)
}

// scrub can do nothing: Postgres overwrites what was deleted when it needs the room.
func (*pgDialect) scrub(context.Context, *sql.DB) error { return nil }

func (*pgDialect) diskFull(err error) bool  { return pgCode(err) == "53100" }
func (*pgDialect) duplicate(err error) bool { return pgCode(err) == "23505" }

// pgGroup pipelines each list: begin goes with the first, commit with the last.
type pgGroup struct {
	conn  *sql.Conn
	begun bool
}

func (*pgDialect) beginGroup(ctx context.Context, write *sql.DB) (groupTx, error) {
	conn, err := write.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &pgGroup{conn: conn}, nil
}

func (g *pgGroup) run(ctx context.Context, list []statement) error {
	return g.send(ctx, list, false)
}

// atOnce is how many statements are sent with their commit, in one round trip: one that has
// to change a row and changes none fails the transaction then, and is the only one that's
// known to be lost. With more it's seen first which are.
const atOnce = 48

func (g *pgGroup) commitWith(ctx context.Context, list []statement) error {
	if len(list) <= atOnce {
		return g.send(ctx, list, true)
	}
	if err := g.send(ctx, list, false); err != nil {
		return err
	}
	return g.send(ctx, nil, true)
}

// orFail makes an update that changes no row fail by a division by zero (22012).
func orFail(update string) string {
	return `WITH changed AS (` + update + ` RETURNING 1) SELECT 1 / COUNT(*) FROM changed`
}

func (g *pgGroup) send(ctx context.Context, list []statement, commit bool) error {
	return g.conn.Raw(func(dc any) error {
		var batch pgx.Batch
		begin := !g.begun
		if begin {
			batch.Queue("begin")
			g.begun = true
		}
		for i := range list {
			query := list[i].query
			if commit && list[i].must {
				query = orFail(query)
			}
			batch.Queue(query, list[i].args...)
		}
		if commit {
			batch.Queue("commit")
		}
		res := dc.(*stdlib.Conn).Conn().SendBatch(ctx, &batch)
		err := readBatch(res, list, begin, commit)
		return errors.Join(err, res.Close())
	})
}

func readBatch(res pgx.BatchResults, list []statement, begin, commit bool) error {
	if begin {
		if _, err := res.Exec(); err != nil {
			return err
		}
	}
	var lost lostSteps
	for i := range list {
		err := readStep(res, &list[i])
		switch {
		case errors.Is(err, errNoRows):
			lost = append(lost, list[i].owner)
		case err != nil && lost != nil: // perhaps for what was lost
			return lost
		case err != nil:
			return &stepError{op: list[i].owner, err: err}
		}
	}
	if lost != nil {
		return lost
	}
	if commit {
		tag, err := res.Exec()
		if err == nil && tag.String() != "COMMIT" {
			err = errors.New("store: Postgres rolled the transaction back: " + tag.String())
		}
		return err
	}
	return nil
}

func readStep(res pgx.BatchResults, s *statement) error {
	if s.scan == nil {
		tag, err := res.Exec()
		if s.must && (err == nil && tag.RowsAffected() != 1 || pgCode(err) == "22012") {
			err = errNoRows
		}
		return err
	}
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := s.scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (g *pgGroup) end() error {
	err := g.conn.Raw(func(dc any) error {
		c := dc.(*stdlib.Conn).Conn()
		if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
			return nil
		}
		_, err := c.Exec(context.Background(), "rollback")
		return err
	})
	return errors.Join(err, g.conn.Close())
}
