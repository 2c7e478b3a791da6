package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// frozen are bytes that no reader of JSON would write again like this.
const frozen = "{ \"command\": \"\\u0075ptime\",\x00\xff \"n\": 1.50 }"

func queue(in *fleet.Intent) {
	in.QueueUntil, in.Frozen = in.At.Add(time.Hour), []byte(frozen)
}

// left are the open calls as the process after this one finds them.
func left(t *testing.T, cfg store.Config) map[fleet.CallID]store.OpenCall {
	t.Helper()
	list, err := open(t, cfg).OpenCalls(context.Background())
	check(t, err)
	out := map[fleet.CallID]store.OpenCall{}
	last := fleet.CallID("")
	for _, c := range list {
		if c.ID <= last {
			t.Errorf("%s comes after %s", c.ID, last)
		}
		out[c.ID], last = c, c.ID
	}
	return out
}

// testQueued follows a queued call from its intent over its sending to its outcome.
func testQueued(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	plain := begin(t, db, func(in *fleet.Intent) { in.Boot = "b1" })
	in := begin(t, db, queue)
	want := fleet.Call{
		ID: in.CallID, Principal: "pat:p1", Name: "laptop", Client: "claude-code/2.1", Edge: "mcp", Agent: "web-01", Generation: 3,
		Tool: "shell_exec", Args: []byte(`{"command":"uptime"}`), State: fleet.Queued, CreatedAt: in.At, Deadline: in.Deadline,
		QueueUntil: in.QueueUntil,
	}
	if d := cmp.Diff(store.OpenCall{Call: want, Frozen: []byte(frozen)}, left(t, cfg)[in.CallID]); d != "" {
		t.Error("while it's queued", d)
	}
	list, _, err := db.Calls(ctx, store.CallFilter{State: fleet.Queued})
	check(t, err)
	if d := cmp.Diff([]fleet.Call{want}, list); d != "" {
		t.Error("the list of queued calls", d)
	}
	check(t, db.MarkSent(ctx, in.CallID, "b2", store.NewMark()))
	want.State, want.Boot = fleet.Dispatched, "b2"
	after := left(t, cfg)
	if d := cmp.Diff(store.OpenCall{Call: want}, after[in.CallID]); d != "" {
		t.Error("after it was sent", d)
	}
	if c := after[plain.CallID]; c.Boot != "b1" || c.State != fleet.Dispatched || c.Frozen != nil || !c.QueueUntil.IsZero() {
		t.Errorf("the plain call beside it: %+v", c)
	}
	check(t, db.RecordOutcome(ctx, outcome(in.CallID)))
	rows := records(t, db, store.RecordFilter{CallID: in.CallID})
	if len(rows) != 3 || rows[2].Kind != store.KindIntent || rows[1].Kind != store.KindSent || rows[0].Kind != store.KindOutcome {
		t.Fatalf("the record has %v of the call, want intent, sent and outcome", rows)
	}
	bodies := make([]map[string]any, 3)
	for i, r := range rows {
		if r.Agent != "web-01" || r.Principal != "pat:p1" || r.CallID != in.CallID || !bytes.Equal(r.Leaf, store.Leaf(r.Body)) {
			t.Errorf("row %+v doesn't name its call, agent and principal, or isn't its leaf's", r)
		}
		check(t, json.Unmarshal(r.Body, &bodies[i]))
	}
	if got := bodies[2]["queue_until"]; got != in.QueueUntil.Format("2006-01-02T15:04:05.000000Z") {
		t.Errorf("the intent's queue_until is %v", got)
	}
	delete(bodies[1], "at")
	sent := map[string]any{"v": 1.0, "kind": "sent", "id": rows[1].ID, "call_id": string(in.CallID), "boot": "b2", "instance": db.Instance()}
	if d := cmp.Diff(sent, bodies[1]); d != "" {
		t.Error("sent body", d)
	}
	if rows[1].At.Before(in.At) || rows[1].At.After(now()) {
		t.Errorf("sent at %s", rows[1].At)
	}
}

// testQueuedRefuses: half a queued call isn't recorded, and what isn't queued can't be sent.
func testQueuedRefuses(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	for _, change := range []func(*fleet.Intent){
		func(in *fleet.Intent) { in.QueueUntil = in.At.Add(time.Hour) },
		func(in *fleet.Intent) { in.Frozen = []byte(frozen) },
	} {
		in := intent()
		change(&in)
		_, err := db.RecordIntent(ctx, in)
		wantCode(t, err, protocol.CodeInternal)
	}
	wantCode(t, db.MarkSent(ctx, fleet.CallID(newID()), "b", store.NewMark()), protocol.CodeNotFound)
	plain, sent, expired := begin(t, db, func(in *fleet.Intent) { in.Boot = "b1" }), begin(t, db, queue), begin(t, db, queue)
	check(t, db.MarkSent(ctx, sent.CallID, "b1", store.NewMark()))
	check(t, db.RecordOutcome(ctx, fleet.Outcome{CallID: expired.CallID, State: fleet.Expired, Code: protocol.CodeExpired, Message: "too late"}))
	for _, id := range []fleet.CallID{plain.CallID, sent.CallID, expired.CallID} {
		before, err := db.Call(ctx, id)
		check(t, err)
		rows := records(t, db, store.RecordFilter{CallID: id})
		if err := db.MarkSent(ctx, id, "b2", store.NewMark()); !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("sent a call that is %s: %v", before.State, err)
		}
		after, err := db.Call(ctx, id)
		check(t, err)
		if d := cmp.Diff(before, after) + cmp.Diff(rows, records(t, db, store.RecordFilter{CallID: id})); d != "" {
			t.Errorf("a refused MarkSent of a call that is %s changed it: %s", before.State, d)
		}
	}
}

// testSentRace: several processes send and end the same queued calls. One at most may send
// each, none after its end.
func testSentRace(t *testing.T, cfg store.Config) {
	ctx, dbs := context.Background(), []*store.DB{open(t, cfg), open(t, cfg)}
	const calls, racers = 8, 6
	var ids [calls]fleet.CallID
	var sent [calls]atomic.Int32
	for i := range ids {
		ids[i] = begin(t, dbs[0], queue).CallID
	}
	var wg sync.WaitGroup
	for i, id := range ids {
		for r := range racers {
			wg.Go(func() {
				switch err := dbs[r%2].MarkSent(ctx, id, "b", store.NewMark()); {
				case err == nil:
					sent[i].Add(1)
				case !errors.Is(err, store.ErrAlreadyFinal):
					t.Error(err)
				}
			})
		}
		if i%2 == 0 {
			wg.Go(func() {
				if err := dbs[i/2%2].RecordOutcome(ctx, fleet.Outcome{CallID: id, State: fleet.Cancelled, Code: protocol.CodeCancelled}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for i, id := range ids {
		n, rows := int(sent[i].Load()), len(records(t, dbs[0], store.RecordFilter{CallID: id, Kind: store.KindSent}))
		if n > 1 || n != rows || i%2 == 1 && n != 1 {
			t.Errorf("call %d was sent %d times, the record has it %d times", i, n, rows)
		}
		c, err := dbs[0].Call(ctx, id)
		check(t, err)
		if want := []fleet.State{fleet.Cancelled, fleet.Dispatched}[i%2]; c.State != want {
			t.Errorf("call %d is %s, want %s", i, c.State, want)
		}
	}
}

// testMarkAgain: who lost the answer to its own sending is told that it's its own; nobody
// else is, and nobody after the call's end.
func testMarkAgain(t *testing.T, cfg store.Config) {
	ctx, db, other := context.Background(), open(t, cfg), open(t, cfg)
	in, mark := begin(t, db, queue), store.NewMark()
	check(t, db.MarkSent(ctx, in.CallID, "b", mark))
	check(t, db.MarkSent(ctx, in.CallID, "b", mark))
	for name, err := range map[string]error{
		"another sending": db.MarkSent(ctx, in.CallID, "b", store.NewMark()),
		"another process": other.MarkSent(ctx, in.CallID, "b", mark),
	} {
		if !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(records(t, db, store.RecordFilter{CallID: in.CallID, Kind: store.KindSent})); n != 1 {
		t.Errorf("%d rows say that it was sent", n)
	}
	check(t, db.RecordOutcome(ctx, outcome(in.CallID)))
	if err := db.MarkSent(ctx, in.CallID, "b", mark); !errors.Is(err, store.ErrAlreadyFinal) {
		t.Errorf("its own sending, after its end: %v", err)
	}
}

// testAdopt: what a dead process left open is found once, by whoever adopts it.
func testAdopt(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	dead, err := store.Open(ctx, cfg)
	check(t, err)
	queued, flying, ended := begin(t, dead, queue), begin(t, dead, nil), begin(t, dead, nil)
	check(t, dead.RecordOutcome(ctx, outcome(ended.CallID)))
	check(t, dead.Close())

	db := open(t, cfg)
	own := begin(t, db, queue)
	ids := func() (ids []fleet.CallID) {
		list, err := db.OpenCalls(ctx)
		check(t, err)
		for _, c := range list {
			ids = append(ids, c.ID)
		}
		return ids
	}
	if d := cmp.Diff([]fleet.CallID{queued.CallID, flying.CallID}, ids()); d != "" {
		t.Error("what the dead process left", d)
	}
	if mine, err := db.Adopt(ctx, fleet.Queued); err != nil || len(mine) != 0 {
		t.Errorf("adopted nothing: %v %v", mine, err)
	}
	if mine, err := db.Adopt(ctx, fleet.Queued, queued.CallID, ended.CallID, "no such call", queued.CallID); err != nil || len(mine) != 1 || mine[0] != queued.CallID {
		t.Errorf("adopted %v %v", mine, err)
	}
	if d := cmp.Diff([]fleet.CallID{flying.CallID}, ids()); d != "" {
		t.Error("after one was adopted", d)
	}
	next := left(t, cfg)
	if len(next) != 3 || next[queued.CallID].State != fleet.Queued || next[own.CallID].State != fleet.Queued || next[flying.CallID].State != fleet.Dispatched {
		t.Errorf("the process after that finds %+v", next)
	}
}

func unknown(id fleet.CallID) fleet.Outcome {
	return fleet.Outcome{CallID: id, State: fleet.OutcomeUnknown, Code: protocol.CodeOutcomeUnknown, Message: "the connection was lost"}
}

// testEvidence: one line, once, beside an unknown outcome that stays as it was.
func testEvidence(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	lost, failed, going := begin(t, db, nil), begin(t, db, nil), begin(t, db, nil)
	check(t, db.RecordOutcome(ctx, unknown(lost.CallID)))
	check(t, db.RecordOutcome(ctx, outcome(failed.CallID)))
	want, err := db.Call(ctx, lost.CallID)
	check(t, err)
	at := now()
	ev := func(id fleet.CallID) fleet.Evidence {
		return fleet.Evidence{CallID: id, Text: "it had begun\n(pid 7)\x00 " + strings.Repeat("x", 600), At: at}
	}
	wantCode(t, db.RecordEvidence(ctx, fleet.Evidence{CallID: lost.CallID, Text: " \n"}), protocol.CodeInternal)
	check(t, db.RecordEvidence(ctx, ev(lost.CallID)))
	got, err := db.Call(ctx, lost.CallID)
	check(t, err)
	if len(got.Evidence) > 512 || !strings.HasPrefix(got.Evidence, "it had begun (pid 7)") || strings.Contains(got.Evidence, "\x00") {
		t.Errorf("evidence %q", got.Evidence)
	}
	want.Evidence, want.EvidenceAt = got.Evidence, at
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	list, _, err := db.Calls(ctx, store.CallFilter{State: fleet.OutcomeUnknown})
	check(t, err)
	want.Commitment, want.Salt = nil, nil // lists haven't these
	if d := cmp.Diff([]fleet.Call{*want}, list); d != "" {
		t.Error("in the list", d)
	}
	for _, id := range []fleet.CallID{lost.CallID, failed.CallID} {
		second := ev(id)
		second.Text = "something else"
		if err := db.RecordEvidence(ctx, second); !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("got %v, want it refused", err)
		}
	}
	wantCode(t, db.RecordEvidence(ctx, ev(going.CallID)), protocol.CodeInternal)
	wantCode(t, db.RecordEvidence(ctx, ev(fleet.CallID(newID()))), protocol.CodeNotFound)
	if again, err := db.Call(ctx, lost.CallID); err != nil || again.Evidence != want.Evidence {
		t.Errorf("a second evidence: %+v %v", again, err)
	}
	if rows := records(t, db, store.RecordFilter{Kind: store.KindEvidence}); len(rows) != 1 || rows[0].CallID != lost.CallID || rows[0].Agent != "web-01" {
		t.Errorf("the record has %v", rows)
	}
	rows := records(t, db, store.RecordFilter{CallID: lost.CallID})
	if len(rows) != 3 || rows[0].Kind != store.KindEvidence || !strings.Contains(string(rows[0].Body), `"text":"it had begun (pid 7)`) {
		t.Errorf("the call's rows are %v", rows)
	}
}

func testUnsettled(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	since := now().Add(-time.Minute)
	var ids []fleet.CallID // newest first
	for i := range 4 {
		in := begin(t, db, func(in *fleet.Intent) {
			if i == 3 {
				in.Generation++
			}
		})
		check(t, db.RecordOutcome(ctx, unknown(in.CallID)))
		if i < 3 {
			ids = append([]fleet.CallID{in.CallID}, ids...)
		}
	}
	other := begin(t, db, func(in *fleet.Intent) { in.Agent = "web-02" })
	check(t, db.RecordOutcome(ctx, unknown(other.CallID)))
	begin(t, db, nil)
	check(t, db.RecordOutcome(ctx, outcome(begin(t, db, nil).CallID)))
	get := func(since time.Time, limit int) []fleet.CallID {
		t.Helper()
		got, err := db.Unsettled(ctx, "web-01", 3, since, limit)
		check(t, err)
		return got
	}
	for _, limit := range []int{0, 2} {
		want := ids[:cmpLimit(limit, len(ids))]
		if d := cmp.Diff(want, get(since, limit)); d != "" {
			t.Errorf("limit %d: %s", limit, d)
		}
	}
	if d := cmp.Diff(ids, get(time.Time{}, 0)); d != "" {
		t.Error("since ever", d)
	}
	if got := get(now().Add(time.Minute), 0); len(got) != 0 {
		t.Errorf("made in the future: %v", got)
	}
	check(t, db.RecordEvidence(ctx, fleet.Evidence{CallID: ids[1], Text: "it ended"}))
	if d := cmp.Diff([]fleet.CallID{ids[0], ids[2]}, get(since, 0)); d != "" {
		t.Error("after evidence", d)
	}
}

func cmpLimit(limit, n int) int {
	if limit == 0 {
		return n
	}
	return limit
}

// testRebuildSurvive makes calls anew that are queued, sent, expired, and lost with evidence.
func testRebuildSurvive(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	waiting, sent, done, expired := begin(t, db, queue), begin(t, db, queue), begin(t, db, queue), begin(t, db, queue)
	lost := begin(t, db, func(in *fleet.Intent) { in.Boot = "b1" })
	check(t, db.MarkSent(ctx, sent.CallID, "b2", store.NewMark()))
	check(t, db.MarkSent(ctx, done.CallID, "", store.NewMark()))
	check(t, db.RecordOutcome(ctx, outcome(done.CallID)))
	check(t, db.RecordOutcome(ctx, fleet.Outcome{CallID: expired.CallID, State: fleet.Expired, Code: protocol.CodeExpired}))
	check(t, db.RecordOutcome(ctx, unknown(lost.CallID)))
	check(t, db.RecordEvidence(ctx, fleet.Evidence{CallID: lost.CallID, Text: "it had ended with exit code 0", At: now()}))
	calls := func() (list []fleet.Call) {
		for _, id := range []fleet.CallID{waiting.CallID, sent.CallID, done.CallID, expired.CallID, lost.CallID} {
			c, err := db.Call(ctx, id)
			check(t, err)
			list = append(list, *c)
		}
		return list
	}
	before := calls()
	n, err := db.RebuildCalls(ctx)
	check(t, err)
	if n != len(before) {
		t.Errorf("%d calls rebuilt, want %d", n, len(before))
	}
	if d := cmp.Diff(before, calls(), cmpopts.IgnoreFields(fleet.Call{}, "Result", "Message", "Match", "Salt", "ResultSalt")); d != "" {
		t.Error(d)
	}
	again := left(t, cfg)
	if len(again) != 2 || string(again[waiting.CallID].Frozen) != frozen || again[sent.CallID].Frozen != nil {
		t.Errorf("open after it: %+v", again)
	}
	for id, want := range map[fleet.CallID]int{waiting.CallID: 1, sent.CallID: 2, done.CallID: 3, lost.CallID: 3} {
		if got := records(t, db, store.RecordFilter{CallID: id}); len(got) != want {
			t.Errorf("a rebuilt call leads to %d rows, want %d", len(got), want)
		}
	}
	check(t, db.MarkSent(ctx, waiting.CallID, "b3", store.NewMark()))
	if err := db.MarkSent(ctx, sent.CallID, "b3", store.NewMark()); !errors.Is(err, store.ErrAlreadyFinal) {
		t.Errorf("sent twice over a rebuild: %v", err)
	}
}

// testCrossedGroups: two processes end the same calls, in opposite orders, many at a time.
// Their groups take the same rows, and neither may wear out the other: each step is done or
// lost, and none is turned away because the database is busy.
func testCrossedGroups(t *testing.T, cfg store.Config) {
	ctx, dbs := context.Background(), []*store.DB{open(t, cfg), open(t, cfg)}
	const rounds, calls = 2, 24
	for round := range rounds {
		var ids [calls]fleet.CallID
		var won [calls]atomic.Int32
		var wg sync.WaitGroup
		for i := range ids {
			in := intent()
			queue(&in)
			ids[i] = in.CallID
			wg.Go(func() {
				_, err := dbs[i%2].RecordIntent(ctx, in)
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for r, db := range dbs {
			for n := range ids {
				i := n
				if r == 1 {
					i = calls - 1 - n
				}
				key := fmt.Sprint("key ", round, " ", i)
				wg.Go(func() {
					in := intent()
					in.Key = key
					if _, err := db.RecordIntent(ctx, in); err != nil {
						t.Error(err)
					}
				})
				wg.Go(func() {
					out := outcome(ids[i])
					switch err := db.RecordOutcome(ctx, out); {
					case err == nil:
						won[i].Add(1)
					case !errors.Is(err, store.ErrAlreadyFinal):
						t.Error(err)
					}
				})
				wg.Go(func() {
					if err := db.MarkSent(ctx, ids[i], "b", store.NewMark()); err != nil && !errors.Is(err, store.ErrAlreadyFinal) {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		for i := range won {
			if n := won[i].Load(); n != 1 {
				t.Errorf("call %d of round %d has %d outcomes", i, round, n)
			}
		}
	}
	if n := len(records(t, dbs[0], store.RecordFilter{Kind: store.KindIntent, Limit: store.MaxPage})); n != 2*rounds*calls {
		t.Errorf("%d intents recorded, want %d: a key is one call", n, 2*rounds*calls)
	}
}
