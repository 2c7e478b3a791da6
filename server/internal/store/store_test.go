package store_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/store/storetest"
	"github.com/drover-fleet/drover/server/internal/tunnel"
	"github.com/drover-fleet/drover/tests/testenv"
)

var (
	_ tunnel.Store = (*store.DB)(nil)
	_ enroll.Store = (*store.DB)(nil)
)

func TestConformance(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) store.Config { return sqliteConfig(t) })
	})
	t.Run("postgres", func(t *testing.T) {
		requirePostgres(t)
		storetest.Run(t, func(t *testing.T) store.Config { return postgresConfig(t) })
	})
}

func sqliteConfig(t testing.TB) store.Config {
	return store.Config{DataDir: t.TempDir(), Key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
}

// postgresURL is DROVER_TEST_POSTGRES, or the usual local one.
func postgresURL() string {
	return cmp.Or(os.Getenv("DROVER_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/test")
}

// requirePostgres skips when no Postgres answers, or fails where everything is required.
func requirePostgres(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	db, err := sql.Open("pgx", postgresURL())
	if err == nil {
		defer func() { _ = db.Close() }()
		err = db.PingContext(ctx)
	}
	testenv.Require(t, err == nil, fmt.Sprintf("Postgres doesn't answer (DROVER_TEST_POSTGRES names one): %v", err))
}

// postgresConfig makes a schema of the test's own.
func postgresConfig(t testing.TB) store.Config {
	t.Helper()
	ctx := context.Background()
	admin, err := sql.Open("pgx", postgresURL())
	if err != nil {
		t.Fatal(err)
	}
	schema := "drover_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if _, err := admin.ExecContext(ctx, "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(ctx, "SET client_min_messages = warning; DROP SCHEMA "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
		if err := admin.Close(); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(postgresURL())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return store.Config{DatabaseURL: u.String(), Key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
}

func openConfig(t testing.TB, cfg store.Config) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// engines runs a test on both.
func engines(t *testing.T, run func(t *testing.T, cfg store.Config)) {
	t.Run("sqlite", func(t *testing.T) { run(t, sqliteConfig(t)) })
	t.Run("postgres", func(t *testing.T) {
		requirePostgres(t)
		run(t, postgresConfig(t))
	})
}

func TestOpenRefuses(t *testing.T) {
	for name, cfg := range map[string]store.Config{
		"nothing":    {},
		"not a URL":  {DatabaseURL: "postgres://user:secret@host:notaport/x"},
		"no answer":  {DatabaseURL: "postgres://user:secret@127.0.0.1:1/x?connect_timeout=2"},
		"not a path": {DataDir: "/dev/null/x"},
	} {
		db, err := store.Open(context.Background(), cfg)
		if err == nil {
			t.Error(name, "opened", db.Close())
			continue
		}
		if strings.Contains(fmt.Sprint(err), "secret") {
			t.Error(name, "shows the password:", err)
		}
	}
}

// TestPlainOnLoopback: a Postgres on this host isn't spoken to by TLS unless that was asked for.
func TestPlainOnLoopback(t *testing.T) {
	requirePostgres(t)
	for mode, want := range map[string]string{"": "f", "prefer": "f", "allow": "f", "disable": "f", "require": "t"} {
		cfg := postgresConfig(t)
		u, err := url.Parse(cfg.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Require(t, strings.HasPrefix(u.Host, "127.0.0.1") || strings.HasPrefix(u.Host, "localhost"), "DROVER_TEST_POSTGRES isn't on loopback")
		q := u.Query()
		q.Del("sslmode")
		if mode != "" {
			q.Set("sslmode", mode)
		}
		u.RawQuery = q.Encode()
		cfg.DatabaseURL = u.String()
		db, err := store.Open(context.Background(), cfg)
		if err != nil && mode == "require" && strings.Contains(err.Error(), "doesn't support") || err != nil && strings.Contains(err.Error(), "refused TLS") {
			continue // this Postgres has no TLS
		}
		if err != nil {
			t.Fatal(mode, err)
		}
		read, write := db.Pools()
		for _, pool := range []*sql.DB{read, write} {
			var got string
			if err := pool.QueryRow(`SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&got); err != nil || got[:1] != want {
				t.Errorf("sslmode=%s: TLS %s, want %s; %v", mode, got, want, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestReadOnlyForAWhile: when Postgres takes writes again, as after maintenance or a failover,
// the server does too, though its connections were made while it didn't.
func TestReadOnlyForAWhile(t *testing.T) {
	requirePostgres(t)
	cfg := postgresConfig(t)
	admin, err := sql.Open("pgx", postgresURL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, role := context.Background(), "drover_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	do := func(query string) {
		t.Helper()
		if _, err := admin.ExecContext(ctx, query); err != nil {
			t.Error(err)
		}
	}
	do("CREATE ROLE " + role + " LOGIN SUPERUSER PASSWORD '" + role + "'")
	t.Cleanup(func() {
		do("DROP OWNED BY " + role)
		do("DROP ROLE " + role)
		if err := admin.Close(); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, role)
	cfg.DatabaseURL = u.String()
	db := openConfig(t, cfg)
	record := func() error { _, err := db.RecordIntent(ctx, newIntent()); return err }
	if err := record(); err != nil {
		t.Fatal(err)
	}
	do("ALTER ROLE " + role + " SET default_transaction_read_only = on")
	do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + role + "'")
	if err := record(); fleet.AsError(err).Code != protocol.CodeUnavailable {
		t.Errorf("recorded in a database that takes no writes: %v", err)
	}
	do("ALTER ROLE " + role + " RESET default_transaction_read_only")
	for range 20 { // every connection of the pools
		if err := record(); err != nil {
			t.Fatal("the database takes writes again:", err)
		}
	}
}
