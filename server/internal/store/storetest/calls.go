package storetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// testCall follows one call from its intent to its outcome.
func testCall(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	in := begin(t, db, nil)
	want := fleet.Call{
		ID: in.CallID, Principal: "pat:p1", Name: "laptop", Client: "claude-code/2.1", Edge: "mcp", Agent: "web-01", Generation: 3,
		Tool: "shell_exec", Args: []byte(`{"command":"uptime"}`), State: fleet.Dispatched, CreatedAt: in.At, Deadline: in.Deadline,
		Commitment: in.Commitment, Salt: in.Salt,
	}
	got, err := db.Call(ctx, in.CallID)
	check(t, err)
	if d := cmp.Diff(want, *got); d != "" {
		t.Error("after the intent", d)
	}
	out := outcome(in.CallID)
	check(t, db.RecordOutcome(ctx, out))
	want.State, want.Code, want.Reason, want.Message = out.State, out.Code, out.Reason, out.Message
	want.ExitCode, want.Result, want.FinishedAt, want.TookUS = out.ExitCode, out.Result, out.At, out.TookUS
	want.ResultCommitment, want.ResultSalt = out.Commitment, out.Salt
	got, err = db.Call(ctx, in.CallID)
	check(t, err)
	if d := cmp.Diff(want, *got); d != "" {
		t.Error("after the outcome", d)
	}
	rows := records(t, db, store.RecordFilter{CallID: in.CallID})
	if len(rows) != 2 || rows[1].Kind != store.KindIntent || rows[0].Kind != store.KindOutcome {
		t.Fatalf("the record has %v of the call, want its outcome and its intent", rows)
	}
	var body map[string]any
	check(t, json.Unmarshal(rows[1].Body, &body))
	for k, v := range map[string]any{
		"v": 1.0, "kind": "intent", "call_id": string(in.CallID), "principal": "pat:p1", "name": "laptop", "client": in.Client, "edge": "mcp",
		"agent_id": "web-01", "generation": 3.0, "tool": "shell_exec", "effect": "normal_change", "args": map[string]any{"command": "uptime"},
		"commitment": hex.EncodeToString(in.Commitment), "at": in.At.Format("2006-01-02T15:04:05.000000Z"),
	} {
		if d := cmp.Diff(v, body[k]); d != "" {
			t.Error("intent body", k, d)
		}
	}
	for _, r := range rows {
		if r.CallID != in.CallID || r.Agent != "web-01" || r.Principal != "pat:p1" {
			t.Errorf("row %+v doesn't name its call, agent and principal", r)
		}
		for _, secret := range []string{"salt", "m1", hex.EncodeToString(in.Salt), "stdout", out.Message} {
			if strings.Contains(string(r.Body), secret) {
				t.Errorf("the %s's body holds %q, which may not be kept for ever", r.Kind, secret)
			}
		}
	}
}

func testCallRefuses(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	_, err := db.Call(ctx, "no such call")
	wantCode(t, err, protocol.CodeNotFound)
	wantCode(t, db.RecordOutcome(ctx, outcome(fleet.CallID(newID()))), protocol.CodeNotFound)
	in := begin(t, db, nil)
	out := outcome(in.CallID)
	out.State = fleet.Running
	wantCode(t, db.RecordOutcome(ctx, out), protocol.CodeInternal)
	_, err = db.RecordIntent(ctx, in) // the same id again
	if err == nil {
		t.Error("a call id was recorded twice")
	}
	in = intent()
	in.Agent = ""
	_, err = db.RecordIntent(ctx, in)
	wantCode(t, err, protocol.CodeInternal)
}

// testOneOutcome lets many race to end the same calls: one wins each, whoever it is, and
// the others are told so.
func testOneOutcome(t *testing.T, cfg store.Config) {
	ctx, a := context.Background(), open(t, cfg)
	b := open(t, cfg) // another process
	const calls, racers = 8, 6
	var ids []fleet.CallID
	for range calls {
		ids = append(ids, begin(t, a, nil).CallID)
	}
	var mu sync.Mutex
	won := map[fleet.CallID][]string{}
	var wg sync.WaitGroup
	for r := range racers {
		for _, id := range ids {
			wg.Go(func() {
				out := outcome(id)
				out.Message = fmt.Sprint("racer ", r)
				err := []*store.DB{a, b}[r%2].RecordOutcome(ctx, out)
				if err == nil {
					mu.Lock()
					won[id] = append(won[id], out.Message)
					mu.Unlock()
				} else if !errors.Is(err, store.ErrAlreadyFinal) {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, id := range ids {
		c, err := a.Call(ctx, id)
		check(t, err)
		if len(won[id]) != 1 || c.Message != won[id][0] {
			t.Errorf("call %s: winners %q, stored %q", id, won[id], c.Message)
		}
	}
	if rows := records(t, a, store.RecordFilter{Kind: store.KindOutcome}); len(rows) != calls {
		t.Errorf("%d outcome rows of %d calls", len(rows), calls)
	}
}

func testCalls(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	var all []fleet.CallID // newest first
	for i := range 10 {
		in := begin(t, db, func(in *fleet.Intent) {
			in.Agent = fleet.AgentID([]string{"web-01", "web-02"}[i%2])
			in.Principal.ID = []string{"pat:p1", "pat:p2"}[i/5]
			in.Tool = []string{"fs_read", "fs_write", "fs_stat"}[i%3]
		})
		all = append([]fleet.CallID{in.CallID}, all...)
	}
	check(t, db.RecordOutcome(ctx, outcome(all[0])))
	pick := func(keep func(i int) bool) (ids []fleet.CallID) {
		for n, id := range all {
			if keep(9 - n) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	tests := []struct {
		name string
		f    store.CallFilter
		keep func(i int) bool
	}{
		{"all", store.CallFilter{}, func(int) bool { return true }},
		{"agent", store.CallFilter{Agent: "web-02"}, func(i int) bool { return i%2 == 1 }},
		{"principal", store.CallFilter{Principal: "pat:p2"}, func(i int) bool { return i >= 5 }},
		{"both", store.CallFilter{Principal: "pat:p2", Agent: "web-01"}, func(i int) bool { return i >= 5 && i%2 == 0 }},
		{"tool", store.CallFilter{Tool: "fs_write"}, func(i int) bool { return i%3 == 1 }},
		{"agent and tool", store.CallFilter{Agent: "web-01", Tool: "fs_stat"}, func(i int) bool { return i%2 == 0 && i%3 == 2 }},
		{"ended", store.CallFilter{State: fleet.Failed}, func(i int) bool { return i == 9 }},
		{"none", store.CallFilter{Agent: "web"}, func(int) bool { return false }},
	}
	for _, tt := range tests {
		for _, limit := range []int{0, 1, 2, 3} { // the same list, whatever the page
			tt.f.Limit = limit
			if d := cmp.Diff(pick(tt.keep), walkCalls(t, db, tt.f)); d != "" {
				t.Error(tt.name, limit, d)
			}
		}
	}
}

// walkCalls follows the cursor to the end.
func walkCalls(t *testing.T, db *store.DB, f store.CallFilter) (ids []fleet.CallID) {
	t.Helper()
	for range 100 {
		page, next, err := db.Calls(context.Background(), f)
		check(t, err)
		if f.Limit > 0 && len(page) > f.Limit {
			t.Fatalf("a page of %d, limit %d", len(page), f.Limit)
		}
		for _, c := range page {
			if c.Result != nil {
				t.Error("a list holds a result")
			}
			ids = append(ids, c.ID)
		}
		if next == "" {
			return ids
		}
		f.Before = next
	}
	t.Fatal("the cursor doesn't end")
	return nil
}

func testKeyJoins(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	first := begin(t, db, func(in *fleet.Intent) { in.Key = "k" })
	again := func(change func(*fleet.Intent)) (store.IntentResult, error) {
		in := intent()
		in.Key = "k"
		change(&in)
		return db.RecordIntent(ctx, in)
	}
	got, err := again(func(*fleet.Intent) {})
	check(t, err)
	if got.Joined == nil || got.Joined.ID != first.CallID || got.PolicyVersion == 0 {
		t.Errorf("got %+v, want to join %s", got, first.CallID)
	}
	_, err = again(func(in *fleet.Intent) { in.Match = "m2" })
	wantCode(t, err, protocol.CodeConflict)
	got, err = again(func(in *fleet.Intent) { in.Principal.ID = "pat:other" })
	check(t, err)
	if got.Joined != nil {
		t.Error("joined another principal's call")
	}
	check(t, db.RecordOutcome(ctx, outcome(first.CallID)))
	got, err = again(func(in *fleet.Intent) { in.At = in.At.Add(24 * time.Hour) }) // a key is for ever
	check(t, err)
	if got.Joined == nil || got.Joined.State != fleet.Failed || string(got.Joined.Result) != `{"stdout":"hi"}` {
		t.Errorf("got %+v, want the ended call with its result", got.Joined)
	}
	if n := len(records(t, db, store.RecordFilter{Kind: store.KindIntent})); n != 2 {
		t.Errorf("%d intents recorded, want 2", n)
	}
}

func testToolUseJoins(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	first := begin(t, db, func(in *fleet.Intent) { in.JoinKey = "j" })
	again := func(change func(*fleet.Intent)) *fleet.Call {
		t.Helper()
		in := intent()
		in.JoinKey = "j"
		change(&in)
		got, err := db.RecordIntent(ctx, in)
		check(t, err)
		return got.Joined
	}
	same := func(*fleet.Intent) {}
	if c := again(same); c == nil || c.ID != first.CallID {
		t.Errorf("an open call isn't joined: %+v", c)
	}
	if c := again(func(in *fleet.Intent) { in.At = in.At.Add(time.Hour) }); c == nil {
		t.Error("an open call isn't joined an hour later")
	}
	for name, change := range map[string]func(*fleet.Intent){
		"arguments": func(in *fleet.Intent) { in.Match = "m2" },
		"principal": func(in *fleet.Intent) { in.Principal.ID = "pat:other" },
		"tool use":  func(in *fleet.Intent) { in.JoinKey = "j2" },
	} {
		if c := again(change); c != nil {
			t.Error("joined though this differs:", name)
		}
	}
	out := outcome(first.CallID)
	check(t, db.RecordOutcome(ctx, out))
	if c := again(func(in *fleet.Intent) { in.At = out.At.Add(store.JoinWindow - time.Second) }); c == nil || c.ID != first.CallID {
		t.Errorf("a call that has just ended isn't joined: %+v", c)
	}
	if c := again(func(in *fleet.Intent) { in.At = out.At.Add(store.JoinWindow + time.Second) }); c != nil {
		t.Error("joined a call that ended long ago")
	}
}

// testJoinsWithinGroup sends repeats at once: they meet in the same commit, or in two, and
// one call is made either way.
func testJoinsWithinGroup(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	dbs := []*store.DB{open(t, cfg), open(t, cfg)}
	for round := range 10 {
		key := fmt.Sprint("k", round)
		var mu sync.Mutex
		ids := map[fleet.CallID]int{}
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				in := intent()
				if in.Key = key; i%4 == 3 {
					in.Match = "other"
				}
				got, err := dbs[i%2].RecordIntent(ctx, in)
				var fe *fleet.Error
				if errors.As(err, &fe) && fe.Code == protocol.CodeConflict {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				id := in.CallID
				if got.Joined != nil {
					id = got.Joined.ID
				}
				mu.Lock()
				ids[id]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if len(ids) != 1 {
			t.Errorf("one key made %d calls: %v", len(ids), ids)
		}
	}
	if n := len(records(t, dbs[0], store.RecordFilter{Kind: store.KindIntent})); n != 10 {
		t.Errorf("%d intents recorded, want 10", n)
	}
}

// testHostileText stores what breaks databases: NUL, half characters, markup, far too long.
func testHostileText(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	bad := "a\x00b\xf0\x9f\r\n\x1b[2J<script>'\";--" + strings.Repeat("😀", 2000)
	in := begin(t, db, func(in *fleet.Intent) {
		in.Principal.Name, in.Client, in.Edge, in.Effect, in.Tool = bad, bad, bad, bad, bad
		in.Args = []byte("{\"x\":\"\xf0\x9f\",\"y\":\"a\\u0000b\"}")
		in.Key, in.JoinKey, in.Match = bad, bad, bad
	})
	notJSON := begin(t, db, func(in *fleet.Intent) { in.Args = []byte("a\x00b\xf0\x9f") })
	long := begin(t, db, func(in *fleet.Intent) { in.Args = []byte(`{"x":"` + strings.Repeat("😀", 1<<20) + `"}`) })
	out := outcome(in.CallID)
	out.Reason, out.Message, out.Result = bad, bad, []byte("a\x00b\xf0\x9f")
	check(t, db.RecordOutcome(ctx, out))
	db.RecordRefusal(fleet.Refusal{Principal: bad, Name: bad, Client: bad, Edge: bad, Tool: bad, Agent: bad, Code: protocol.CodeBadArgs, Message: bad})
	ev := event(bad, bad)
	ev.Principal, ev.Detail = bad, map[string]string{bad: bad}
	check(t, db.RecordAdmin(ctx, ev))
	check(t, db.Flush(ctx))
	c, err := db.Call(ctx, in.CallID)
	check(t, err)
	for _, s := range []string{c.Name, c.Client, c.Edge, c.Tool, c.Reason, c.Message, string(c.Args)} {
		if !utf8.ValidString(s) || strings.Contains(s, "\x00") || len(s) > 4096 {
			t.Errorf("stored %d bytes, %.40q", len(s), s)
		}
	}
	if string(c.Result) != "a\x00b\xf0\x9f" {
		t.Errorf("a result is bytes and must come back as it was: %q", c.Result)
	}
	for _, id := range []fleet.CallID{notJSON.CallID, long.CallID} {
		c, err := db.Call(ctx, id)
		check(t, err)
		var v any
		if err := json.Unmarshal(c.Args, &v); err != nil || len(c.Args) > 300<<10 {
			t.Errorf("arguments stored as %d bytes: %v", len(c.Args), err)
		}
	}
	rows := records(t, db, store.RecordFilter{})
	if len(rows) != 6 {
		t.Errorf("%d rows, want 6", len(rows))
	}
	for _, r := range rows {
		var v map[string]any
		if err := json.Unmarshal(r.Body, &v); err != nil {
			t.Errorf("%s body: %v", r.Kind, err)
		}
	}
	if _, _, err := db.Calls(ctx, store.CallFilter{Principal: bad, Agent: fleet.AgentID(bad), Before: bad}); err != nil {
		t.Error(err)
	}
}
