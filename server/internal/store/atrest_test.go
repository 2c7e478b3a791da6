package store_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// files are the bytes that the engine keeps: each file of the data folder, or of the tables,
// their indexes and what they keep aside.
func files(t *testing.T, cfg store.Config, db *store.DB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	if cfg.DataDir != "" {
		err := filepath.WalkDir(cfg.DataDir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				all[path], err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	_, write := db.Pools()
	ctx := context.Background()
	if _, err := write.ExecContext(ctx, `CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
	rows, err := write.QueryContext(ctx, `WITH own AS (SELECT oid, reltoastrelid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')), every AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0)
SELECT oid::regclass::text, pg_read_binary_file(pg_relation_filepath(oid)) FROM every WHERE pg_relation_filepath(oid) IS NOT NULL`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var b []byte
		if err := rows.Scan(&name, &b); err != nil {
			t.Fatal(err)
		}
		all[name] = b
	}
	if err := rows.Err(); err != nil || len(all) < 10 {
		t.Fatal(len(all), err)
	}
	return all
}

func holding(all map[string][]byte, marker string) (names []string) {
	for name, b := range all {
		if bytes.Contains(b, []byte(marker)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// secret is a marker in arguments of a size: those that fit a page, and those that are kept aside.
func secret(size int) (marker string, args []byte) {
	marker = "secret-" + uuid.NewString()
	noise := make([]byte, size/2) // which no engine makes smaller
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	return marker, fmt.Appendf(nil, `{"stdin":"%s","env":"%x"}`, marker, noise)
}

// TestQueuedArgumentsAreSealed: the arguments of a queued call are in none of the database's
// files in clear, neither while it waits nor after it was sent or has ended, however it ended.
func TestQueuedArgumentsAreSealed(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		for _, size := range []int{10, 50_000} {
			for _, end := range []protocol.Code{"", protocol.CodeExpired, protocol.CodeCancelled, protocol.CodeDenied, protocol.CodeNotStarted} {
				marker, args := secret(size)
				in := newIntent()
				in.QueueUntil, in.Frozen = in.At.Add(time.Hour), args
				if _, err := db.RecordIntent(ctx, in); err != nil {
					t.Fatal(err)
				}
				if names := holding(files(t, cfg, db), marker); names != nil {
					t.Errorf("%d bytes that wait are in %v", size, names)
				}
				var err error
				if end == "" {
					err = db.MarkSent(ctx, in.CallID, "", store.NewMark())
				} else {
					err = db.RecordOutcome(ctx, fleet.Outcome{CallID: in.CallID, State: fleet.StateOf(end), Code: end})
				}
				if err != nil {
					t.Fatal(err)
				}
				if names := holding(files(t, cfg, db), marker); names != nil {
					t.Errorf("%d bytes of a call that ended as %q are in %v", size, end, names)
				}
			}
		}
	})
}

// TestPrunedResultsAreGone: SQLite's files have nothing of a result that was deleted.
func TestPrunedResultsAreGone(t *testing.T) {
	cfg := sqliteConfig(t)
	ctx, db := context.Background(), openConfig(t, cfg)
	var markers []string
	for range 20 {
		for _, size := range []int{10, 3000, 50_000} {
			marker, body := secret(size)
			in := newIntent()
			if _, err := db.RecordIntent(ctx, in); err != nil {
				t.Fatal(err)
			}
			if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: in.CallID, State: fleet.Succeeded, Result: body}); err != nil {
				t.Fatal(err)
			}
			markers = append(markers, marker)
		}
	}
	if holding(files(t, cfg, db), markers[0]) == nil {
		t.Error("a result that is kept isn't found: this test looks in the wrong place")
	}
	var left []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if _, err := db.PruneResults(ctx, 0); err != nil {
			t.Fatal(err)
		}
		all := files(t, cfg, db)
		left = slices.DeleteFunc(slices.Clone(markers), func(m string) bool { return holding(all, m) == nil })
		if len(left) == 0 { // what reads just now may keep the log
			return
		}
	}
	t.Errorf("%d of %d deleted results can be read in the files", len(left), len(markers))
}
