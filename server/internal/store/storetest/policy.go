package storetest

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

func testPATs(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	a, b := newPAT("a"), newPAT("b")
	b.CreatedAt, b.ExpiresAt, b.Admin = a.CreatedAt.Add(time.Second), time.Time{}, true
	b.Grant = fleet.Grant{Agents: fleet.AgentSet{All: true}, Tools: fleet.ToolSet{All: true}}
	version := db.Snapshot().Version
	for _, p := range []store.PAT{a, b} {
		check(t, db.CreatePAT(ctx, p, event("pat.create", "pat:"+p.ID)))
	}
	s := db.Snapshot()
	if s.Version != version+2 {
		t.Errorf("version %d after two changes, it was %d", s.Version, version)
	}
	for _, p := range []store.PAT{a, b} {
		if d := cmp.Diff(&p, s.PATs[p.Hash]); d != "" {
			t.Error("snapshot", d)
		}
	}
	wantCode(t, db.CreatePAT(ctx, a, event("pat.create", "pat:"+a.ID)), protocol.CodeConflict)
	check(t, db.RevokePAT(ctx, a.ID, event("pat.revoke", "pat:"+a.ID)))
	check(t, db.RevokePAT(ctx, a.ID, event("pat.revoke", "pat:"+a.ID)))
	wantCode(t, db.RevokePAT(ctx, "nope", event("pat.revoke", "pat:nope")), protocol.CodeNotFound)
	if got := db.Snapshot(); got.PATs[a.Hash] != nil || got.PATs[b.Hash] == nil || s.PATs[a.Hash] == nil {
		t.Error("the revoked token must leave the new snapshot, alone, and not the old one")
	}
	list, err := db.PATs(ctx)
	check(t, err)
	if len(list) != 2 || list[0].ID != b.ID || list[1].RevokedAt.IsZero() {
		t.Errorf("got %+v, want b and the revoked a", list)
	}
	if n := len(records(t, db, store.RecordFilter{Kind: store.KindAdmin})); n != 3 {
		t.Errorf("%d administrative rows, want 3: what changed nothing isn't recorded", n)
	}
}

// testOtherProcess: a change by another process is seen without being told.
func testOtherProcess(t *testing.T, cfg store.Config) {
	ctx, server, cli := context.Background(), open(t, cfg), open(t, cfg)
	p := newPAT("x")
	check(t, cli.CreatePAT(ctx, p, event("pat.create", "pat:"+p.ID)))
	await(t, func() bool { return server.Snapshot().PATs[p.Hash] != nil })
	check(t, cli.RevokePAT(ctx, p.ID, event("pat.revoke", "pat:"+p.ID)))
	await(t, func() bool { return server.Snapshot().PATs[p.Hash] == nil })
}

// await polls what a background poll of the other side brings about.
func await(t *testing.T, done func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("not seen within 10 s")
		}
	}
}

func testTouches(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	db, err := store.Open(ctx, cfg)
	check(t, err)
	addAgent(t, db, "web-01")
	p := newPAT("x")
	check(t, db.CreatePAT(ctx, p, event("pat.create", "pat:"+p.ID)))
	at := now().Add(time.Minute)
	db.TouchPAT(p.ID, at)
	db.TouchPAT(p.ID, at.Add(-time.Second)) // an earlier one changes nothing
	check(t, db.TouchLastSeen(ctx, at, "web-01", "nobody"))
	check(t, db.TouchLastSeen(ctx, at.Add(-time.Second), "web-01"))
	check(t, db.Refresh(ctx))
	see := func(db *store.DB) {
		t.Helper()
		list, err := db.PATs(ctx)
		check(t, err)
		agents, err := db.AgentRows(ctx, false)
		check(t, err)
		if !list[0].LastUsedAt.Equal(at) || !agents[0].LastSeen.Equal(at) || !db.Snapshot().Agents["web-01"].LastSeen.Equal(at) {
			t.Errorf("last used %s, last seen %s, in the snapshot %s; want %s", list[0].LastUsedAt, agents[0].LastSeen, db.Snapshot().Agents["web-01"].LastSeen, at)
		}
	}
	see(db)
	// A change of the agent's row doesn't bring the older, written time back.
	text := "changed"
	check(t, db.SetAgent(ctx, "web-01", nil, &text, event("agent.set", "web-01")))
	see(db)
	check(t, db.Close())
	see(open(t, cfg))
}

func testEnrolTokens(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	tok := newToken(t, "web-01", false)
	ev := event("enroll.create", "web-01")
	check(t, db.CreateEnrolToken(ctx, tok, ev))
	got, err := db.EnrolToken(ctx, tok.ID)
	check(t, err)
	if d := cmp.Diff(&tok, got); d != "" {
		t.Error(d)
	}
	_, err = db.EnrolToken(ctx, "nope")
	wantCode(t, err, protocol.CodeNotFound)
	wantCode(t, db.CreateEnrolToken(ctx, tok, ev), protocol.CodeConflict)
	wantCode(t, db.CreateEnrolToken(ctx, newToken(t, "web-02", true), ev), protocol.CodeNotFound)
	addAgent(t, db, "db-01")
	wantCode(t, db.CreateEnrolToken(ctx, newToken(t, "db-01", false), ev), protocol.CodeConflict)
	check(t, db.CreateEnrolToken(ctx, newToken(t, "db-01", true), ev))
	wantCode(t, db.RevokeEnrolToken(ctx, "nope", now(), ev), protocol.CodeNotFound)
	at := now()
	check(t, db.RevokeEnrolToken(ctx, tok.ID, at, ev))
	check(t, db.RevokeEnrolToken(ctx, tok.ID, at.Add(time.Hour), ev))
	list, err := db.EnrolTokens(ctx)
	check(t, err)
	if len(list) != 3 || list[0].CreatedAt.Before(list[2].CreatedAt) {
		t.Errorf("got %+v", list)
	}
	for _, l := range list {
		switch {
		case l.ID == tok.ID && !l.RevokedAt.Equal(at):
			t.Errorf("revoked at %s, want %s", l.RevokedAt, at)
		case l.Agent == "db-01" && !l.UsedAt.IsZero():
			wantCode(t, db.RevokeEnrolToken(ctx, l.ID, now(), ev), protocol.CodeConflict)
		}
	}
}

func testEnrol(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	tok, key := newToken(t, "web-01", false), newKey(t)
	ev := event("enroll.use", "agent:web-01")
	check(t, db.CreateEnrolToken(ctx, tok, event("enroll.create", "agent:web-01")))
	e := enroll.Enrolment{TokenID: tok.ID, Key: key, Hostname: "host\x00\r\n", At: now()}
	use := func(e enroll.Enrolment) (fleet.AgentID, int64, error) { return db.Enrol(ctx, e, ev) }
	refused := func(name string, e enroll.Enrolment) {
		t.Helper()
		if _, _, err := use(e); fleet.AsError(err).Code != protocol.CodeUnauthenticated {
			t.Errorf("%s: %v, want unauthenticated", name, err)
		}
	}
	refused("unknown", enroll.Enrolment{TokenID: "nope", Key: key, At: e.At})
	refused("expired", enroll.Enrolment{TokenID: tok.ID, Key: key, At: tok.ExpiresAt})
	for range 2 { // the second time its answer was lost
		id, gen, err := use(e)
		check(t, err)
		if id != "web-01" || gen != 1 {
			t.Errorf("got %s %d", id, gen)
		}
	}
	refused("used by another key", enroll.Enrolment{TokenID: tok.ID, Key: newKey(t), At: e.At})
	want := &fleet.Agent{
		ID: "web-01", Generation: 1, Key: key, Fingerprint: protocol.Fingerprint(key), Labels: map[string]string{"env": "prod"},
		Facts: protocol.Facts{Hostname: "host\uFFFD\r\n"}, Capabilities: []protocol.Capability{}, CreatedAt: e.At,
	}
	if d := cmp.Diff(want, db.Snapshot().Agents["web-01"]); d != "" {
		t.Error(d)
	}
	var uses []string
	for _, r := range records(t, db, store.RecordFilter{Agent: "web-01", Kind: store.KindAdmin}) {
		if bytes.Contains(r.Body, []byte("enroll.use")) {
			uses = append(uses, string(r.Body))
		}
	}
	if len(uses) != 1 || !bytes.Contains([]byte(uses[0]), []byte(`"detail":{"generation":"1","why":"test"}`)) {
		t.Errorf("the record has %q", uses)
	}
	if len(ev.Detail) != 1 {
		t.Error("the caller's event was written to")
	}
}

// testEnrolRace uses one token from many hosts at once, on two replicas: one gets in.
func testEnrolRace(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	dbs := []*store.DB{open(t, cfg), open(t, cfg)}
	tok := newToken(t, "web-01", false)
	check(t, dbs[0].CreateEnrolToken(ctx, tok, event("enroll.create", "web-01")))
	var mu sync.Mutex
	in := 0
	var wg sync.WaitGroup
	for i := range 8 {
		key := newKey(t)
		wg.Go(func() {
			_, _, err := dbs[i%2].Enrol(ctx, enroll.Enrolment{TokenID: tok.ID, Key: key, At: now()}, event("enroll.use", "web-01"))
			if err == nil {
				mu.Lock()
				in++
				mu.Unlock()
			} else {
				wantCodeLater(t, err, protocol.CodeUnauthenticated)
			}
		})
	}
	wg.Wait()
	if in != 1 {
		t.Errorf("%d hosts got in with one token", in)
	}
}

func testReplace(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	old := addAgent(t, db, "web-01")
	epoch, _, err := db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	check(t, err)
	check(t, db.AckEpoch(ctx, "web-01", 1, epoch))
	check(t, db.Quarantine(ctx, "web-01", "forked", now(), time.Time{}))
	tok, key := newToken(t, "web-01", true), newKey(t)
	tok.Labels = nil
	check(t, db.CreateEnrolToken(ctx, tok, event("enroll.create", "web-01")))
	_, gen, err := db.Enrol(ctx, enroll.Enrolment{TokenID: tok.ID, Key: key, At: now()}, event("enroll.use", "web-01"))
	check(t, err)
	s := db.Snapshot()
	a := s.Agents["web-01"]
	if gen != 2 || a.Generation != 2 || !a.Key.Equal(key) || a.Labels["env"] != "prod" || s.Quarantined["web-01"].Reason != "" {
		t.Errorf("got generation %d, %+v, %+v", gen, a, s.Quarantined)
	}
	got, k, removed, err := db.AgentForTunnel(ctx, "web-01", 1)
	check(t, err)
	if got == nil || got.Generation != 2 || !k.Equal(old) || removed {
		t.Errorf("the superseded generation: %+v, key known %t", got, k.Equal(old))
	}
	_, k, _, err = db.AgentForTunnel(ctx, "web-01", 9)
	check(t, err)
	if k != nil {
		t.Error("a generation that never was has a key")
	}
	_, _, err = db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	wantCode(t, err, protocol.CodeNotFound)
	next, verdict, err := db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 2, Instance: "i"}) // a new host has no last epoch
	check(t, err)
	if verdict != fleet.Admitted || next <= epoch {
		t.Errorf("the new key's first epoch is %d (%s), the old key's was %d", next, verdict, epoch)
	}
}

func testRemove(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	key := addAgent(t, db, "web-01")
	in := begin(t, db, nil)
	pending := newToken(t, "web-01", true)
	check(t, db.CreateEnrolToken(ctx, pending, event("enroll.create", "web-01")))
	check(t, db.RemoveAgent(ctx, "web-01", now(), event("agent.remove", "web-01")))
	wantCode(t, db.RemoveAgent(ctx, "web-01", now(), event("agent.remove", "web-01")), protocol.CodeNotFound)
	wantCode(t, db.RemoveAgent(ctx, "nope", now(), event("agent.remove", "nope")), protocol.CodeNotFound)
	if db.Snapshot().Agents["web-01"] != nil {
		t.Error("a removed agent is in the snapshot")
	}
	a, k, removed, err := db.AgentForTunnel(ctx, "web-01", 1)
	check(t, err)
	if a == nil || !removed || !k.Equal(key) {
		t.Errorf("the tombstone: %+v, removed %t", a, removed)
	}
	if a, k, removed, err := db.AgentForTunnel(ctx, "never", 1); a != nil || k != nil || removed || err != nil {
		t.Error("an id that never was:", a, k, removed, err)
	}
	_, _, err = db.Enrol(ctx, enroll.Enrolment{TokenID: pending.ID, Key: newKey(t), At: now()}, event("enroll.use", "web-01"))
	wantCode(t, err, protocol.CodeUnauthenticated)
	for _, replace := range []bool{false, true} {
		wantCode(t, db.CreateEnrolToken(ctx, newToken(t, "web-01", replace), event("enroll.create", "web-01")), protocol.CodeConflict)
	}
	_, _, err = db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	wantCode(t, err, protocol.CodeNotFound)
	wantCode(t, db.SetAgent(ctx, "web-01", map[string]string{}, nil, event("agent.set", "web-01")), protocol.CodeNotFound)
	if _, err := db.Call(ctx, in.CallID); err != nil {
		t.Error("its calls must stay:", err)
	}
	alive, err := db.AgentRows(ctx, false)
	check(t, err)
	all, err := db.AgentRows(ctx, true)
	check(t, err)
	if len(alive) != 0 || len(all) != 1 || all[0].RemovedAt.IsZero() {
		t.Errorf("listed %d alive, %d in all", len(alive), len(all))
	}
}

func testSetAgent(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	addAgent(t, db, "web-01")
	old := db.Snapshot()
	text := "the shop's front"
	check(t, db.SetAgent(ctx, "web-01", nil, &text, event("agent.set", "web-01")))
	a := db.Snapshot().Agents["web-01"]
	if a.Description != text || a.Labels["env"] != "prod" {
		t.Errorf("got %+v", a)
	}
	check(t, db.SetAgent(ctx, "web-01", map[string]string{"tier": "2"}, nil, event("agent.set", "web-01")))
	a = db.Snapshot().Agents["web-01"]
	if d := cmp.Diff(map[string]string{"tier": "2"}, a.Labels); d != "" || a.Description != text {
		t.Error(d, a.Description)
	}
	if old.Agents["web-01"].Labels["env"] != "prod" || db.Snapshot().Version != old.Version+2 {
		t.Error("an old snapshot was written to, or the version didn't move")
	}
	wantCode(t, db.SetAgent(ctx, "nope", nil, &text, event("agent.set", "nope")), protocol.CodeNotFound)
}

func testEpochs(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	addAgent(t, db, "web-01")
	next := func(last int64) (int64, bool) {
		t.Helper()
		e, verdict, err := db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "instance", LastEpoch: last})
		check(t, err)
		return e, verdict == fleet.Forked
	}
	first, _ := next(0)
	second, _ := next(0) // the first was never acknowledged
	if second <= first || first <= 0 {
		t.Errorf("epochs %d, %d don't grow", first, second)
	}
	check(t, db.AckEpoch(ctx, "web-01", 1, second))
	check(t, db.AckEpoch(ctx, "web-01", 1, first))      // late
	check(t, db.AckEpoch(ctx, "web-01", 7, second+100)) // another generation
	check(t, db.AckEpoch(ctx, "web-01", 1, second+100)) // never given out
	if _, forked := next(first); !forked {
		t.Error("an older last epoch than acknowledged isn't seen as a fork")
	}
	third, forked := next(second)
	if forked || third != second+1 {
		t.Errorf("after a fork was turned away the next epoch is %d (forked %t), want %d: it changed nothing", third, forked, second+1)
	}
	ahead, forked := next(third + 50) // the database was restored without telling
	if forked || ahead <= third+50 {
		t.Errorf("epoch %d (forked %t) isn't above what the agent has seen, %d", ahead, forked, third+50)
	}
	if e, _ := next(1<<63 - 1); e <= 0 || e > 1<<53 {
		t.Errorf("an absurd last epoch leads to %d", e)
	}
	rows, err := db.AgentRows(ctx, false)
	check(t, err)
	if rows[0].Epoch <= ahead {
		t.Errorf("the current epoch isn't listed: %d", rows[0].Epoch)
	}
	_, _, err = db.NextEpoch(ctx, fleet.Claim{Agent: "nope", Generation: 1, Instance: "i"})
	wantCode(t, err, protocol.CodeNotFound)
}

func testEpochsRace(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	dbs := []*store.DB{open(t, cfg), open(t, cfg)}
	addAgent(t, dbs[0], "web-01")
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			e, _, err := dbs[i%2].NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[e] {
				t.Errorf("epoch %d given twice, or %v", e, err)
			}
			seen[e] = true
		})
	}
	wg.Wait()
}

func testFacts(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	addAgent(t, db, "web-01")
	stale, _, err := db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	check(t, err)
	epoch, _, err := db.NextEpoch(ctx, fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	check(t, err)
	facts := protocol.Facts{Hostname: "h", OS: "linux", OSVersion: "Debian", Arch: "amd64", RunAs: "root", AgentVersion: "1", Roots: []string{"/srv"}}
	caps := []protocol.Capability{{Name: "fs_read", Version: 2}}
	check(t, db.UpdateFacts(ctx, "web-01", stale, protocol.Facts{Hostname: "stale"}, nil))
	if h := db.Snapshot().Agents["web-01"].Facts.Hostname; h != "host" {
		t.Errorf("an old connection changed the facts: %q", h)
	}
	check(t, db.UpdateFacts(ctx, "web-01", epoch, facts, caps))
	s := db.Snapshot()
	if a := s.Agents["web-01"]; !cmp.Equal(a.Facts, facts) || a.Offers("fs_read") != 2 {
		t.Errorf("got %+v", a)
	}
	check(t, db.UpdateFacts(ctx, "web-01", epoch, facts, caps))
	if db.Snapshot() != s {
		t.Error("the same facts again made a new snapshot")
	}
	check(t, db.UpdateFacts(ctx, "web-01", epoch, protocol.Facts{Hostname: "a\x00b\xf0\x9f", Roots: make([]string, 5000)}, make([]protocol.Capability, 5000)))
	a := db.Snapshot().Agents["web-01"]
	if a.Facts.Hostname != "a\uFFFDb\uFFFD" || len(a.Facts.Roots) > 64 || len(a.Capabilities) > 256 {
		t.Errorf("got hostname %q, %d roots, %d capabilities", a.Facts.Hostname, len(a.Facts.Roots), len(a.Capabilities))
	}
	wantCode(t, db.UpdateFacts(ctx, "nope", 1, facts, caps), protocol.CodeNotFound)
}

func testQuarantine(t *testing.T, cfg store.Config) {
	ctx, db := context.Background(), open(t, cfg)
	addAgent(t, db, "web-01")
	at := now()
	want := fleet.Quarantine{Reason: "duplicate", At: at, Until: at.Add(time.Minute)}
	for range 3 {
		check(t, db.Quarantine(ctx, "web-01", want.Reason, want.At, want.Until))
	}
	if d := cmp.Diff(want, db.Snapshot().Quarantined["web-01"]); d != "" {
		t.Error(d)
	}
	check(t, db.Quarantine(ctx, "web-01", "forked", at, time.Time{}))
	rows, err := db.AgentRows(ctx, false)
	check(t, err)
	if rows[0].Quarantine.Reason != "forked" || !rows[0].Quarantine.Until.IsZero() {
		t.Errorf("got %+v", rows[0].Quarantine)
	}
	n := 0
	for _, r := range records(t, db, store.RecordFilter{Agent: "web-01", Kind: store.KindAdmin}) {
		if bytes.Contains(r.Body, []byte("agent.quarantine")) {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d rows about the quarantine, want 2: one a reason", n)
	}
	wantCode(t, db.Quarantine(ctx, "nope", "forked", at, time.Time{}), protocol.CodeNotFound)
}
