package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/server/internal/store"
)

// TestMigrateDownUp runs every migration down and up again: the schema is the same.
func TestMigrateDownUp(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		before := schemaOf(t, db)
		p, err := db.Provider()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.DownTo(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if left := schemaOf(t, db); strings.Contains(left, "calls") || strings.Contains(left, "record") {
			t.Errorf("left after all the way down:\n%s", left)
		}
		if _, err := p.Up(ctx); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before, schemaOf(t, db)); d != "" {
			t.Error(d)
		}
	})
}

// TestGoldenSchema compares the schema with the file that reviewers read.
// DROVER_UPDATE_GOLDEN=1 writes it.
func TestGoldenSchema(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		db := openConfig(t, cfg)
		got := schemaOf(t, db)
		path := filepath.Join("testdata", "schema."+db.Engine()+".txt")
		if os.Getenv("DROVER_UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("the schema isn't %s (DROVER_UPDATE_GOLDEN=1 writes it):\n%s", path, d)
		}
	})
}

const (
	sqliteSchema = `SELECT COALESCE(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND tbl_name <> 'goose_db_version' ORDER BY type DESC, name`

	postgresColumns = `SELECT table_name || '.' || column_name || ' ' || data_type || CASE WHEN is_nullable = 'NO' THEN ' NOT NULL' ELSE '' END || COALESCE(' DEFAULT ' || column_default, '')
FROM information_schema.columns WHERE table_schema = current_schema() AND table_name <> 'goose_db_version' ORDER BY table_name, ordinal_position`
	postgresIndexes = `SELECT replace(indexdef, current_schema() || '.', '') FROM pg_indexes WHERE schemaname = current_schema() AND tablename <> 'goose_db_version' ORDER BY indexname`
	postgresChecks  = `SELECT conrelid::regclass::text || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = current_schema()::regnamespace AND contype IN ('c', 'f') AND conrelid::regclass::text <> 'goose_db_version' ORDER BY 1`
)

func schemaOf(t *testing.T, db *store.DB) string {
	t.Helper()
	queries := []string{sqliteSchema}
	if db.Engine() == "postgres" {
		queries = []string{postgresColumns, postgresIndexes, postgresChecks}
	}
	_, write := db.Pools()
	var out bytes.Buffer
	for _, q := range queries {
		lines(t, write, &out, q)
	}
	return out.String()
}

func lines(t *testing.T, db *sql.DB, out *bytes.Buffer, query string) {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(out, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestMigrateAtOnce opens a new database from several goroutines at once.
func TestMigrateAtOnce(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				db, err := store.Open(context.Background(), cfg)
				if err != nil {
					t.Error(err)
					return
				}
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// TestMigrateProcesses does it from several processes: this test's own program, started
// again.
func TestMigrateProcesses(t *testing.T) {
	const dirEnv, urlEnv = "STORE_TEST_OPEN_DIR", "STORE_TEST_OPEN_URL"
	if dir, url := os.Getenv(dirEnv), os.Getenv(urlEnv); dir != "" || url != "" {
		db, err := store.Open(context.Background(), store.Config{DataDir: dir, DatabaseURL: url})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	engines(t, func(t *testing.T, cfg store.Config) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestMigrateProcesses$")
				cmd.Env = append(os.Environ(), dirEnv+"="+cfg.DataDir, urlEnv+"="+cfg.DatabaseURL)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
		openConfig(t, cfg)
	})
}

// TestNewerDatabase refuses what a newer program wrote, and leaves it as it is.
func TestNewerDatabase(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx := context.Background()
		db, err := store.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.InTx(ctx, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, TRUE)`); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = store.Open(ctx, cfg)
		if err == nil || !strings.Contains(err.Error(), "newer Drover") || !strings.Contains(err.Error(), "999") {
			t.Errorf("got %v, want a refusal that says what to do", err)
		}
	})
}
