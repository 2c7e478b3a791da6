package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// testWithdrawnIntent lets callers go away at any moment: what they're told is what the
// record says.
func testWithdrawnIntent(t *testing.T, cfg store.Config) {
	db := open(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	gone := intent()
	_, err := db.RecordIntent(ctx, gone)
	wantCode(t, err, protocol.CodeCancelled)

	var mu sync.Mutex
	told := map[fleet.CallID]bool{gone.CallID: false}
	var wg sync.WaitGroup
	for round := range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 8 {
			wg.Go(func() {
				in := intent()
				_, err := db.RecordIntent(ctx, in)
				if i == round%8 {
					cancel()
				}
				if err != nil {
					wantCodeLater(t, err, protocol.CodeCancelled)
				}
				mu.Lock()
				told[in.CallID] = err == nil
				mu.Unlock()
			})
		}
		wg.Wait()
		cancel()
	}
	for id, recorded := range told {
		if _, err := db.Call(context.Background(), id); (err == nil) != recorded {
			t.Errorf("call %s: told recorded=%t, the store says %v", id, recorded, err)
		}
	}
}

// wantCodeLater is wantCode for other goroutines than the test's.
func wantCodeLater(t *testing.T, err error, code protocol.Code) {
	if fleet.AsError(err).Code != code {
		t.Errorf("got error %v, want code %s", err, code)
	}
}

// testGrouping writes from many at once: everything is there, and commits were shared.
func testGrouping(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	const writers, each = 64, 5
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				in := intent()
				if _, err := db.RecordIntent(ctx, in); err != nil {
					t.Error(err)
				}
				if err := db.RecordOutcome(ctx, outcome(in.CallID)); err != nil {
					t.Error(err)
				}
				if c, err := db.Call(ctx, in.CallID); err != nil || c.State != fleet.Failed {
					t.Error("not there after the answer:", c, err)
				}
			}
		})
	}
	wg.Wait()
	s := db.Stats()
	if want := int64(2 * writers * each); s.Rows != want || s.Commits >= want/2 {
		t.Errorf("%d rows in %d commits, want %d rows in fewer than half as many", s.Rows, s.Commits, want)
	}
	if n := len(records(t, db, store.RecordFilter{Limit: store.MaxPage})); n != 2*writers*each {
		t.Errorf("%d rows in the record", n)
	}
}

// testPolicyVersion: an intent learns in its own transaction that another process has
// changed the policy since the snapshot.
func testPolicyVersion(t *testing.T, cfg store.Config) {
	ctx, a, b := context.Background(), open(t, cfg), open(t, cfg)
	got, err := a.RecordIntent(ctx, intent())
	check(t, err)
	before := a.Snapshot().Version
	if got.PolicyVersion != before {
		t.Errorf("the intent saw version %d, the snapshot %d", got.PolicyVersion, before)
	}
	p := newPAT("x")
	check(t, b.CreatePAT(ctx, p, event("pat.create", "pat:"+p.ID)))
	got, err = a.RecordIntent(ctx, intent())
	check(t, err)
	if got.PolicyVersion <= before {
		t.Errorf("the intent saw version %d after a change, it was %d before", got.PolicyVersion, before)
	}
	check(t, a.Refresh(ctx))
	if s := a.Snapshot(); s.Version != got.PolicyVersion || s.PATs[p.Hash] == nil {
		t.Errorf("after Refresh the snapshot is at %d, want %d with the token", s.Version, got.PolicyVersion)
	}
}

func testPruneResults(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	old, fresh, late := begin(t, db, nil), begin(t, db, nil), begin(t, db, nil)
	for in, age := range map[*fleet.Intent]time.Duration{&old: 3 * time.Hour, &fresh: 0, &late: -time.Hour} {
		out := outcome(in.CallID)
		out.At = now().Add(-age)
		check(t, db.RecordOutcome(ctx, out))
	}
	// Everything is younger than an hour by its id, so nothing may go; then an id that is
	// as old as its result.
	if n, err := db.PruneResults(ctx, time.Hour); err != nil || n != 0 {
		t.Errorf("pruned %d, %v: results of calls that were made just now", n, err)
	}
	if n, err := db.PruneResults(ctx, -10*time.Minute); err != nil || n != 2 {
		t.Errorf("pruned %d, %v, want 2: all but the one that ended late", n, err)
	}
	for in, want := range map[*fleet.Intent]bool{&old: false, &fresh: false, &late: true} {
		c, err := db.Call(ctx, in.CallID)
		check(t, err)
		if (c.Result != nil) != want || c.State != fleet.Failed {
			t.Errorf("result kept %t, want %t; state %s", c.Result != nil, want, c.State)
		}
	}
}

func refusalsOf(t *testing.T, db *store.DB) (rows []refusalRow) {
	t.Helper()
	for _, r := range records(t, db, store.RecordFilter{Kind: store.KindRefusal, Limit: store.MaxPage}) {
		var b refusalRow
		check(t, json.Unmarshal(r.Body, &b))
		rows = append(rows, b)
	}
	return rows
}

type refusalRow struct {
	Principal string `json:"principal"`
	Agent     string `json:"agent_id"`
	Tool      string `json:"tool"`
	Code      string `json:"code"`
	Message   string `json:"message"`
	Count     int    `json:"count"`
	Client    string `json:"client"`
	Edge      string `json:"edge"`
}

func testRefusals(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	db.RecordRefusal(fleet.Refusal{Principal: "pat:p1", Tool: "fs_read", Agent: strings.Repeat("x", 500), Code: protocol.CodeUnknownAgent, Message: "no"})
	check(t, db.Flush(ctx))
	want := []refusalRow{{Principal: "pat:p1", Tool: "fs_read", Agent: strings.Repeat("x", 64), Code: "unknown_agent", Message: "no", Count: 1}}
	if d := cmp.Diff(want, refusalsOf(t, db)); d != "" {
		t.Error(d)
	}
}

// testRefusalsCoalesce: a flood of one principal takes few rows that count all of it, and
// doesn't hide another's.
func testRefusalsCoalesce(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	const flood = 5000
	start := time.Now()
	for range flood {
		db.RecordRefusal(fleet.Refusal{Principal: "pat:loud", Code: protocol.CodeUnknownTool})
	}
	db.RecordRefusal(fleet.Refusal{Principal: "pat:quiet", Code: protocol.CodeBadArgs})
	seconds := int(time.Since(start)/time.Second) + 2
	check(t, db.Flush(ctx))
	loud, rows, quiet := 0, 0, 0
	for _, r := range refusalsOf(t, db) {
		switch r.Principal {
		case "pat:loud":
			loud, rows = loud+r.Count, rows+1
		case "pat:quiet":
			quiet += r.Count
		}
	}
	if loud != flood || rows > 11*seconds || quiet != 1 {
		t.Errorf("%d refusals in %d rows (want %d in at most %d), %d of the quiet one", loud, rows, flood, 11*seconds, quiet)
	}
}

// testRefusalsOfNobody: what anybody can cause without a credential takes a row a second,
// however it varies, and that row counts all of it.
func testRefusalsOfNobody(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	const flood = 3000
	start := time.Now()
	for i := range flood {
		db.RecordRefusal(fleet.Refusal{Client: fmt.Sprint("client ", i), Edge: "rest", Code: protocol.CodeUnauthenticated, Message: "a token is needed"})
	}
	db.RecordRefusal(fleet.Refusal{Principal: "pat:quiet", Code: protocol.CodeBadArgs})
	seconds := int(time.Since(start)/time.Second) + 2
	check(t, db.Flush(ctx))
	total, rows, quiet := 0, 0, 0
	for _, r := range refusalsOf(t, db) {
		if r.Principal != "" {
			quiet += r.Count
			continue
		}
		total, rows = total+r.Count, rows+1
		if r.Code != "unauthenticated" || r.Message != "a token is needed" || r.Edge != "rest" || r.Client != "" && r.Count > 1 {
			t.Errorf("the row is %+v", r)
		}
	}
	if total != flood || rows > seconds || quiet != 1 {
		t.Errorf("%d refusals in %d rows (want %d in at most %d), %d of the quiet one", total, rows, flood, seconds, quiet)
	}
}

// testRefusalsBounded: more principals than are watched; all are counted.
func testRefusalsBounded(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	const principals, each = 400, 30
	for i := range principals {
		for range each {
			db.RecordRefusal(fleet.Refusal{Principal: fmt.Sprint("pat:", i), Code: protocol.CodeUnknownTool})
		}
	}
	check(t, db.Flush(ctx))
	total := 0
	f := store.RecordFilter{Kind: store.KindRefusal, Limit: store.MaxPage}
	for {
		rows, next, err := db.Records(ctx, f)
		check(t, err)
		for _, r := range rows {
			var b refusalRow
			check(t, json.Unmarshal(r.Body, &b))
			total += b.Count
		}
		if next == "" {
			break
		}
		f.Before = next
	}
	if total != principals*each {
		t.Errorf("%d refusals counted, want %d", total, principals*each)
	}
}

func testRecords(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	for i := range 5 {
		in := begin(t, db, func(in *fleet.Intent) { in.Agent = fleet.AgentID([]string{"web-01", "web-02"}[i%2]) })
		check(t, db.RecordOutcome(ctx, outcome(in.CallID)))
	}
	check(t, db.RecordAdmin(ctx, event("agent.set", "web-01")))
	check(t, db.RecordAdmin(ctx, event("pat.create", "pat:1")))
	db.RecordRefusal(fleet.Refusal{Principal: "pat:p1", Agent: "web-01", Code: protocol.CodeBadArgs})
	check(t, db.Flush(ctx))
	all := records(t, db, store.RecordFilter{})
	if len(all) != 13 {
		t.Fatalf("%d rows, want 13", len(all))
	}
	for i, r := range all {
		if !bytes.Equal(store.Leaf(r.Body), r.Leaf) || len(r.Leaf) != 32 || r.At.IsZero() {
			t.Errorf("row %s: leaf or time is wrong", r.ID)
		}
		if i > 0 && all[i-1].ID <= r.ID {
			t.Error("rows aren't listed the newest first")
		}
	}
	var up []store.Record
	for f := (store.RecordFilter{After: "0", Limit: 4}); ; {
		page, next, err := db.Records(ctx, f)
		check(t, err)
		up = append(up, page...)
		if next == "" {
			break
		}
		f.After = next
	}
	slicesReverse(up)
	if d := cmp.Diff(all, up); d != "" {
		t.Error("upwards, by pages", d)
	}
	for _, tt := range []struct {
		name string
		f    store.RecordFilter
		want int
	}{
		{"kind", store.RecordFilter{Kind: store.KindIntent}, 5},
		{"agent", store.RecordFilter{Agent: "web-01"}, 8},
		{"principal", store.RecordFilter{Principal: "pat:p1"}, 11},
		{"agent and kind", store.RecordFilter{Agent: "web-02", Kind: store.KindOutcome}, 2},
		{"admin", store.RecordFilter{Principal: "system:test", Kind: store.KindAdmin}, 2},
	} {
		if got := records(t, db, tt.f); len(got) != tt.want {
			t.Errorf("%s: %d rows, want %d", tt.name, len(got), tt.want)
		}
	}
}

func slicesReverse(r []store.Record) {
	for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
		r[i], r[j] = r[j], r[i]
	}
}

func testAdmin(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	ev := event("enroll.refuse", "agent:web-01")
	check(t, db.RecordAdmin(ctx, ev))
	rows := records(t, db, store.RecordFilter{Kind: store.KindAdmin})
	if len(rows) != 1 || rows[0].Agent != "web-01" || rows[0].Principal != "system:test" || !rows[0].At.Equal(ev.At) {
		t.Fatalf("got %+v", rows)
	}
	want := `{"v":1,"kind":"admin","id":"` + rows[0].ID + `","at":"` + ev.At.Format("2006-01-02T15:04:05.000000Z") +
		`","principal":"system:test","action":"enroll.refuse","object":"agent:web-01","detail":{"why":"test"}}`
	if d := cmp.Diff(want, string(rows[0].Body)); d != "" {
		t.Error(d)
	}
	wantCode(t, db.RecordAdmin(ctx, fleet.AdminEvent{}), protocol.CodeInternal)
}

// testRebuild makes the calls anew from the record.
func testRebuild(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	var ids []fleet.CallID
	for i := range 6 {
		in := begin(t, db, func(in *fleet.Intent) {
			in.Args = []byte(`{ "b": "\u0041\u0000", "a": 1.50, "nested": {"x": [1, 2]} }`)
			if i%2 == 0 {
				in.Key, in.Deadline = fmt.Sprint("key", i), time.Time{}
			}
		})
		ids = append(ids, in.CallID)
		if i == 5 {
			break // stays open
		}
		out := outcome(in.CallID)
		if i%2 == 0 {
			out.ExitCode, out.Commitment = nil, nil
		}
		check(t, db.RecordOutcome(ctx, out))
	}
	calls := func() (list []fleet.Call) {
		for _, id := range ids {
			c, err := db.Call(ctx, id)
			check(t, err)
			list = append(list, *c)
		}
		return list
	}
	before := calls()
	n, err := db.RebuildCalls(ctx)
	check(t, err)
	if n != len(ids) {
		t.Errorf("%d calls rebuilt, want %d", n, len(ids))
	}
	if d := cmp.Diff(before, calls(), cmpopts.IgnoreFields(fleet.Call{}, "Result", "Message", "Match", "Salt", "ResultSalt")); d != "" {
		t.Error(d)
	}
	in := intent()
	in.Key = "key0"
	_, err = db.RecordIntent(ctx, in)
	wantCode(t, err, protocol.CodeConflict)
	check(t, db.RecordOutcome(ctx, outcome(ids[5])))
	if len(records(t, db, store.RecordFilter{CallID: ids[0]})) != 2 {
		t.Error("a rebuilt call doesn't lead to its rows")
	}
}

// testClosedStore: Close writes what nobody waits for, and what comes later is refused.
func testClosedStore(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	db, err := store.Open(ctx, cfg)
	check(t, err)
	for range 100 {
		db.RecordRefusal(fleet.Refusal{Principal: "pat:p1", Code: protocol.CodeBadArgs})
	}
	check(t, db.Close())
	check(t, db.Close())
	_, err = db.RecordIntent(ctx, intent())
	wantCode(t, err, protocol.CodeUnavailable)
	wantCode(t, db.RecordOutcome(ctx, outcome("x")), protocol.CodeUnavailable)
	db.RecordRefusal(fleet.Refusal{Principal: "pat:late", Code: protocol.CodeBadArgs})
	total := 0
	for _, r := range refusalsOf(t, open(t, cfg)) {
		total += r.Count
	}
	if total != 100 {
		t.Errorf("%d refusals after Close, want 100", total)
	}
}
