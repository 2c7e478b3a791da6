package store_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// BenchmarkCall is what the record adds to one call: intent and outcome, both waited for,
// one at a time and 64 at a time.
func BenchmarkCall(b *testing.B) {
	for _, parallel := range []int{1, 64} {
		name := map[int]string{1: "one", 64: "64"}[parallel]
		b.Run("sqlite/"+name, func(b *testing.B) { benchCalls(b, openConfig(b, sqliteConfig(b)), parallel) })
		b.Run("postgres/"+name, func(b *testing.B) {
			requirePostgres(b)
			benchCalls(b, openConfig(b, postgresConfig(b)), parallel)
		})
	}
}

func benchCalls(b *testing.B, db *store.DB, parallel int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range parallel {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := benchCall(db); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	s := db.Stats()
	b.ReportMetric(float64(s.Rows)/float64(s.Commits), "rows/commit")
}

func benchCall(db *store.DB) error {
	ctx := context.Background()
	args, salt := []byte(`{"path":"/etc/hosts","limit":100}`), make([]byte, 32)
	in := newIntent()
	in.Principal.Name, in.Client, in.Edge, in.Generation, in.Effect = "bench", "claude-code/2.1", "mcp", 1, "read_only"
	in.Args, in.Salt, in.Commitment, in.Deadline, in.Match = args, salt, salt, in.At.Add(time.Minute), "match"
	if _, err := db.RecordIntent(ctx, in); err != nil {
		return err
	}
	return db.RecordOutcome(ctx, fleet.Outcome{
		CallID: in.CallID, State: fleet.Succeeded, Result: args, Salt: salt, Commitment: salt, At: time.Now(), TookUS: 100,
	})
}
