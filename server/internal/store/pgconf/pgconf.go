// Package pgconf makes the store's connections to Postgres out of a database URL.
package pgconf

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Parse reads the URL. Commits wait for the log's flush whatever the URL, the role or the
// database have set. The error doesn't quote the URL: it may hold a password.
func Parse(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("the database URL isn't one: postgres://user:password@host:5432/database")
	}
	cfg.RuntimeParams["synchronous_commit"] = "on"
	cfg.RuntimeParams["default_transaction_isolation"] = "read committed"
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "drover"
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 5 * time.Second
	}
	plainOnLoopback(cfg)
	return cfg, nil
}

// plainOnLoopback tries without TLS first where TLS isn't asked for (sslmode=prefer, the
// default) and the server is this host's own: nobody is in between who could listen, and each
// message is encrypted and decrypted for nothing.
func plainOnLoopback(cfg *pgx.ConnConfig) {
	ip := net.ParseIP(cfg.Host)
	if cfg.Host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return
	}
	if f := cfg.Fallbacks; cfg.TLSConfig != nil && len(f) == 1 && f[0].TLSConfig == nil && f[0].Host == cfg.Host && f[0].Port == cfg.Port {
		cfg.TLSConfig, f[0].TLSConfig = nil, cfg.TLSConfig
	}
}

// Pool opens connections, at most eight at a time. None is used again that was made while the
// database took no writes: by now another one may.
func Pool(cfg *pgx.ConnConfig) *sql.DB {
	db := stdlib.OpenDB(*cfg, stdlib.OptionResetSession(writable))
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(4)
	return db
}

// writable refuses a connection that Postgres has said takes no writes, since it's to a
// standby, or was made while the database, or the role, was set to read only. Postgres tells of
// these by itself, from version 14 on.
func writable(_ context.Context, c *pgx.Conn) error {
	for _, p := range []string{"in_hot_standby", "default_transaction_read_only"} {
		if c.PgConn().ParameterStatus(p) == "on" {
			return driver.ErrBadConn
		}
	}
	return nil
}

// lockRetry is how often a lock that another session holds is tried.
const lockRetry = 100 * time.Millisecond

// TryLock asks by take for the advisory lock of a key until it's there or ctx ends.
func TryLock(ctx context.Context, conn *sql.Conn, take string, key int64) error {
	again := time.NewTicker(lockRetry)
	defer again.Stop()
	for {
		var got bool
		if err := conn.QueryRowContext(ctx, take, key).Scan(&got); err != nil || got {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
