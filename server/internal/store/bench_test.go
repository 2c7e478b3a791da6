package store

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// BenchmarkCall is what the record adds to one call: intent and outcome, both waited for,
// one at a time and 64 at a time.
func BenchmarkCall(b *testing.B) {
	for _, engine := range []string{"sqlite", "postgres"} {
		for _, parallel := range []int{1, 64} {
			b.Run(engine+"/"+map[int]string{1: "one", 64: "64"}[parallel], func(b *testing.B) {
				benchCalls(b, openBench(b, engine), parallel)
			})
		}
	}
}

func benchCalls(b *testing.B, db *DB, parallel int) {
	ctx := context.Background()
	args, salt := []byte(`{"path":"/etc/hosts","limit":100}`), make([]byte, 32)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range parallel {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				id := fleet.CallID(newID())
				now := time.Now()
				in := fleet.Intent{
					CallID: id, Principal: fleet.Principal{ID: "pat:0192", Name: "bench"}, Client: "claude-code/2.1", Edge: "mcp",
					Agent: "web-01", Generation: 1, Tool: "fs_stat", Effect: "read_only", Args: args, Salt: salt, Commitment: salt,
					Deadline: now.Add(time.Minute), At: now, Match: "match",
				}
				if _, err := db.RecordIntent(ctx, in); err != nil {
					b.Error(err)
					return
				}
				out := fleet.Outcome{CallID: id, State: fleet.Succeeded, Code: protocol.Code(""), Result: args, Salt: salt, Commitment: salt, At: time.Now(), TookUS: 100}
				if err := db.RecordOutcome(ctx, out); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}

func openBench(b *testing.B, engine string) *DB {
	cfg := Config{DataDir: b.TempDir()}
	if engine == "postgres" {
		cfg.DatabaseURL = os.Getenv("DROVER_TEST_POSTGRES_BENCH")
		if cfg.DatabaseURL == "" {
			b.Skip("DROVER_TEST_POSTGRES_BENCH isn't set: the URL of an empty schema to write to")
		}
	}
	db, err := Open(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return db
}
