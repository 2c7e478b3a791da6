package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// TestCallCost bounds what a plain call writes: the pages of its intent and its outcome, as
// the log of SQLite counts them when each is committed by itself. It was 16.12 before calls
// could be queued; a further index or table makes it 17 or more.
func TestCallCost(t *testing.T) {
	const calls, page, most = 500, 4096 + 24, 16.5
	cfg := sqliteConfig(t)
	db := openConfig(t, cfg)
	setLimit(t, db, "PRAGMA wal_autocheckpoint = 0")
	size := func() int64 {
		info, err := os.Stat(filepath.Join(cfg.DataDir, "drover.db-wal"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for range calls {
		if err := benchCall(db); err != nil {
			t.Fatal(err)
		}
	}
	if pages := float64(size()-before) / page / calls; pages > most {
		t.Errorf("a call writes %.2f pages, more than %.1f", pages, most)
	}
}

// TestFrozenBytesGo: the argument bytes of a queued call are nowhere once it was sent or has
// ended, however it ended.
func TestFrozenBytesGo(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		begin := func() fleet.CallID {
			t.Helper()
			in := newIntent()
			in.QueueUntil, in.Frozen = in.At.Add(time.Hour), []byte(`{}`)
			if _, err := db.RecordIntent(ctx, in); err != nil {
				t.Fatal(err)
			}
			return in.CallID
		}
		end := func(id fleet.CallID, code protocol.Code) {
			t.Helper()
			if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: id, State: fleet.StateOf(code), Code: code}); err != nil {
				t.Fatal(err)
			}
		}
		waiting := begin()
		sent := begin()
		if err := db.MarkSent(ctx, sent, "", store.NewMark()); err != nil {
			t.Fatal(err)
		}
		for _, code := range []protocol.Code{
			protocol.CodeExpired, protocol.CodeCancelled, protocol.CodeDenied, protocol.CodeNotStarted, protocol.CodeUnsupported,
			protocol.CodeTimedOut, protocol.CodeOutcomeUnknown,
		} {
			end(begin(), code)
		}
		_, write := db.Pools()
		rows := func() (n int) {
			t.Helper()
			if err := write.QueryRow(`SELECT COUNT(*) FROM queued`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := rows(); n != 1 {
			t.Errorf("%d calls have their bytes, want the one that waits", n)
		}
		end(waiting, protocol.CodeExpired)
		if n := rows(); n != 0 {
			t.Errorf("%d calls have their bytes after all were sent or ended", n)
		}
		if err := db.MarkSent(ctx, waiting, "", store.NewMark()); !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("an expired call was sent: %v", err)
		}
	})
}

// TestUpgradeKeepsCalls brings a database with calls from the first schema to the present
// one.
func TestUpgradeKeepsCalls(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		open, ended := newIntent(), newIntent()
		for _, in := range []fleet.Intent{open, ended} {
			if _, err := db.RecordIntent(ctx, in); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: ended.CallID, State: fleet.OutcomeUnknown, Code: protocol.CodeOutcomeUnknown}); err != nil {
			t.Fatal(err)
		}
		p, err := db.Provider()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.DownTo(ctx, 1); err != nil {
			t.Fatal(err)
		}
		after := openConfig(t, cfg)
		list, err := after.OpenCalls(ctx)
		if err != nil || len(list) != 1 || list[0].ID != open.CallID || list[0].State != fleet.Dispatched || list[0].Boot != "" || list[0].Frozen != nil {
			t.Errorf("open calls: %+v, %v", list, err)
		}
		ids, err := after.Unsettled(ctx, ended.Agent, ended.Generation, time.Time{}, 0)
		if err != nil || len(ids) != 1 || ids[0] != ended.CallID {
			t.Errorf("unsettled: %v, %v", ids, err)
		}
	})
}
