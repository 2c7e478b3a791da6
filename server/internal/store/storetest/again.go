package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// keyed records an intent with this key and returns the call that it began or joined.
func keyed(t *testing.T, db *store.DB, key string) (id fleet.CallID, joined bool) {
	t.Helper()
	in := intent()
	in.Key, in.JoinKey = key, "use of "+key
	got, err := db.RecordIntent(context.Background(), in)
	check(t, err)
	if got.Joined != nil {
		return got.Joined.ID, true
	}
	return in.CallID, false
}

// testKeyOfWhatNeverRan: a key is free again when its call ended as not_started, and for no
// other end; nor when somebody asked for that end.
func testKeyOfWhatNeverRan(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	for _, state := range []fleet.State{
		fleet.Succeeded, fleet.Failed, fleet.Denied, fleet.Expired, fleet.Cancelled, fleet.TimedOut, fleet.NotStarted, fleet.OutcomeUnknown,
	} {
		first, _ := keyed(t, db, string(state))
		out := outcome(first)
		out.State, out.Result = state, nil
		check(t, db.RecordOutcome(ctx, out))
		second, joined := keyed(t, db, string(state))
		if joined == (state == fleet.NotStarted) {
			t.Errorf("after %s: joined is %v", state, joined)
		}
		if third, joined := keyed(t, db, string(state)); !joined || third != second {
			t.Errorf("after %s: a third has %s, the second %s", state, third, second)
		}
	}
	cancelled, _ := keyed(t, db, "asked for")
	check(t, db.RecordCancel(ctx, fleet.Cancel{CallID: cancelled, Name: "me"}))
	out := outcome(cancelled)
	out.State, out.Result = fleet.NotStarted, nil
	check(t, db.RecordOutcome(ctx, out))
	if got, joined := keyed(t, db, "asked for"); !joined || got != cancelled {
		t.Error("what was cancelled before it began is begun again")
	}
	other := intent()
	other.Key, other.Match = "not_started", "m2"
	_, err := db.RecordIntent(ctx, other)
	wantCode(t, err, protocol.CodeConflict)
	if _, err := db.RebuildCalls(ctx); err != nil {
		t.Fatal(err)
	}
	again := intent()
	again.Key = "not_started"
	_, err = db.RecordIntent(ctx, again)
	wantCode(t, err, protocol.CodeConflict)
}

// testKeyRace: of many that use a key again at once, in one commit or on two replicas, one
// begins a call and the others join it.
func testKeyRace(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	dbs := []*store.DB{open(t, cfg), open(t, cfg)}
	for round := range 10 {
		key := fmt.Sprint("k", round)
		first, _ := keyed(t, dbs[0], key)
		out := outcome(first)
		out.State, out.Result = fleet.NotStarted, nil
		check(t, dbs[0].RecordOutcome(ctx, out))
		var mu sync.Mutex
		begun, ids := 0, map[fleet.CallID]bool{}
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				id, joined := keyed(t, dbs[i%2], key)
				mu.Lock()
				defer mu.Unlock()
				ids[id] = true
				if !joined {
					begun++
				}
			})
		}
		wg.Wait()
		if begun != 1 || len(ids) != 1 || ids[first] {
			t.Fatalf("round %d: %d begun, %d calls", round, begun, len(ids))
		}
	}
}

// testCancel: the request for a call's end is on record once, while it's open, and stays
// beside its outcome.
func testCancel(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	in, ended := begin(t, db, nil), begin(t, db, nil)
	check(t, db.RecordOutcome(ctx, outcome(ended.CallID)))
	c := fleet.Cancel{CallID: in.CallID, Principal: "pat:2", Name: "me\x00", At: now()}
	check(t, db.RecordCancel(ctx, c))
	want, err := db.Call(ctx, in.CallID)
	check(t, err)
	if !want.CancelAt.Equal(c.At) || strings.Contains(want.CancelBy, "\x00") || !strings.HasPrefix(want.CancelBy, "me") || want.State != fleet.Dispatched {
		t.Errorf("%+v", want)
	}
	for _, id := range []fleet.CallID{in.CallID, ended.CallID} {
		if err := db.RecordCancel(ctx, fleet.Cancel{CallID: id, Name: "other"}); !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("a second cancel, or one after the end: %v", err)
		}
	}
	wantCode(t, db.RecordCancel(ctx, fleet.Cancel{CallID: fleet.CallID(newID())}), protocol.CodeNotFound)
	if ids, err := db.CancelsHere(ctx); err != nil || len(ids) != 1 || ids[0] != in.CallID {
		t.Errorf("to cancel here: %v %v", ids, err)
	}
	if ids, err := open(t, cfg).CancelsHere(ctx); err != nil || len(ids) != 0 {
		t.Errorf("to cancel by another process: %v %v", ids, err)
	}
	rows := records(t, db, store.RecordFilter{CallID: in.CallID})
	if len(rows) != 2 || rows[0].Kind != store.KindCancel || !strings.Contains(string(rows[0].Body), `"principal":"pat:2"`) {
		t.Errorf("the call's rows are %v", rows)
	}
	check(t, db.RecordOutcome(ctx, outcome(in.CallID)))
	if ids, err := db.CancelsHere(ctx); err != nil || len(ids) != 0 {
		t.Errorf("to cancel after the end: %v %v", ids, err)
	}
	if _, err := db.RebuildCalls(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := db.Call(ctx, in.CallID)
	check(t, err)
	if d := cmp.Diff([]any{want.CancelAt, want.CancelBy, fleet.Failed}, []any{got.CancelAt, got.CancelBy, got.State}); d != "" {
		t.Error("rebuilt", d)
	}
}
