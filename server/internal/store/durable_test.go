package store_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/server/internal/store"
)

// TestSyncedSQLite reads back what a commit's durability rests on, on the connection that
// writes and on those that read.
func TestSyncedSQLite(t *testing.T) {
	db := openConfig(t, sqliteConfig(t))
	read, write := db.Pools()
	if n := write.Stats().MaxOpenConnections; n != 1 {
		t.Errorf("%d connections may write, want 1", n)
	}
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "busy_timeout": "5000", "foreign_keys": "1", "secure_delete": "1"} {
		for name, pool := range map[string]*sql.DB{"write": write, "read": read} {
			var got string
			if err := pool.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: PRAGMA %s is %q, %v; want %q", name, pragma, got, err, want)
			}
		}
	}
	if _, err := read.Exec("DELETE FROM calls"); err == nil {
		t.Error("a reading connection can write")
	}
}

// TestSyncedPostgres reads it back on every connection of both pools, though the URL and
// the database ask for less.
func TestSyncedPostgres(t *testing.T) {
	requirePostgres(t)
	cfg := postgresConfig(t)
	u, err := url.Parse(cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("synchronous_commit", "off")
	u.RawQuery = q.Encode()
	cfg.DatabaseURL = u.String()
	db := openConfig(t, cfg)
	read, write := db.Pools()
	for name, pool := range map[string]*sql.DB{"read": read, "write": write} {
		var conns []*sql.Conn
		for range pool.Stats().MaxOpenConnections - 1 { // the poll may hold one
			c, err := pool.Conn(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			var got string
			if err := c.QueryRowContext(context.Background(), "SHOW synchronous_commit").Scan(&got); err != nil || got != "on" {
				t.Errorf("%s: synchronous_commit is %q, %v; want on", name, got, err)
			}
		}
		for _, c := range conns {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestPrivateFiles: nobody else on the machine can read the database.
func TestPrivateFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new?#% folder")
	db := openConfig(t, store.Config{DataDir: dir})
	if err := db.InTx(context.Background(), `UPDATE store_state SET policy_version = policy_version`); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "new*", "*"))
	if err != nil || len(names) < 3 {
		t.Fatalf("files %q, %v; want the database, its log and its index", names, err)
	}
	for _, name := range append(names, dir) {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", strings.TrimPrefix(name, dir), info.Mode())
		}
	}
}
