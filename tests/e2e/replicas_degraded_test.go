//go:build unix

package e2e

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// works waits until a command on this agent succeeds through this replica.
func works(t *testing.T, d *harness.Deployment, agent string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "calls to "+agent, func() bool {
		_, res := d.REST(d.Admin).Call(agent, "shell_exec", map[string]any{"command": "true"})
		return res.State == "succeeded"
	})
}

// oneEach holds the record of a replica to one intent and one outcome a call.
func oneEach(t *testing.T, d *harness.Deployment) {
	t.Helper()
	harness.Eventually(t, time.Minute, "one outcome of every call", func() bool {
		intents, outcomes := map[string]int{}, map[string]int{}
		for _, r := range d.AllRecords() {
			switch r.Kind {
			case "intent":
				intents[r.CallID]++
			case "outcome":
				outcomes[r.CallID]++
			}
		}
		for id, n := range intents {
			if n > 1 || outcomes[id] > 1 {
				t.Fatalf("call %s has %d intents and %d outcomes", id, n, outcomes[id])
			}
		}
		return len(intents) == len(outcomes)
	})
}

// TestNATSSwallowsEverything: the packets between one replica and NATS vanish, which no
// connection tells of. Its own agents are called as ever; those of the other replica are
// offline, once it's noticed; a call that vanished with the packets is found not to have run,
// and one under way across is found again; an agent that moves meanwhile, its old connection left standing, is called
// where it is, and what is asked of it through the old one has one outcome that's true.
func TestNATSSwallowsEverything(t *testing.T) {
	t.Parallel()
	a, b, d := replicasBehindDoors(t)
	door := fault.NewProxy(t, addr(a))
	a.HostAt("web-01", door.URL(), nil)
	b.Host("db-01")
	a.WaitState("db-01", "online")
	b.WaitState("web-01", "online")
	across, lost := newHeld(t), newHeld(t)
	id := begin(t, &b.Client, "web-01", across.args())
	across.begun(t)

	d.nats.Swallow(true)
	began := time.Now()
	if _, res := b.REST(b.Admin).Call("db-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" || time.Since(began) > 5*time.Second {
		t.Errorf("the replica's own agent, after %s: %s %+v", time.Since(began), res.State, res.Error)
	}
	vanished := begin(t, &b.Client, "web-01", map[string]any{"command": "echo line >> " + lost.effect, "timeout_seconds": 5})
	b.WaitState("web-01", "offline")
	a.WaitState("db-01", "offline")
	if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" {
		t.Errorf("the other's agent: %s %+v", res.State, res.Error)
	}

	door.Lead(addr(b)) // the host moves, and the old replica doesn't hear of it
	door.Strand()
	b.WaitState("web-01", "online")
	if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
		t.Errorf("where it is now: %s %+v", res.State, res.Error)
	}
	old := newHeld(t)
	stuck := make(chan harness.CallResult, 1)
	go func() {
		_, res := a.REST(a.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo line >> " + old.effect, "timeout_seconds": 5})
		stuck <- res
	}()
	d.nats.Swallow(false)
	works(t, a, "db-01")
	works(t, b, "web-01")
	// What told it of db-01 told it of web-01, too.
	if _, res := a.REST(a.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
		t.Errorf("where it was: %s %+v", res.State, res.Error)
	}
	door.Thaw() // the old connection's late end
	across.release(t)
	across.ended(t, await(t, &b.Client, id))
	if res := <-stuck; (res.State == "succeeded") != (old.lines() == 1) || old.lines() > 1 {
		t.Errorf("through the old connection: %s %+v; it ran %d times", res.State, res.Error, old.lines())
	}
	if res := await(t, &a.Client, vanished); res.State != "not_started" && res.State != "outcome_unknown" || lost.lines() != 0 {
		t.Errorf("the call that vanished: %s %+v; it ran %d times", res.State, res.Error, lost.lines())
	}
	oneEach(t, b)
}

// TestNATSRestarts: all connections of all replicas to it end, and come back, twice. A call
// goes on over both, that was asked for between them.
func TestNATSRestarts(t *testing.T) {
	t.Parallel()
	nats := harness.NewNATS(t)
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", nats.URL}})
	b := a.Beside()
	a.Host("web-01")
	b.WaitState("web-01", "online")
	twice := newHeld(t)
	under := begin(t, &b.Client, "web-01", twice.args())
	twice.begun(t)
	for range 2 {
		h, local := newHeld(t), newHeld(t)
		id := begin(t, &b.Client, "web-01", h.args())
		beside := begin(t, &a.Client, "web-01", local.args())
		h.begun(t)
		local.begun(t)
		nats.Kill()
		b.WaitState("web-01", "offline")
		local.release(t)
		local.ended(t, await(t, &a.Client, beside))
		harness.Eventually(t, time.Minute, "the way across is given up", func() bool {
			at, _ := metrics(t, a)
			return at["drover_cluster_pipes"] == "0"
		})
		nats.Start()
		works(t, b, "web-01")
		h.release(t)
		h.ended(t, await(t, &b.Client, id))
	}
	twice.release(t)
	twice.ended(t, await(t, &b.Client, under))
	oneEach(t, b)
}

// TestPostgresGoneForAll: the database crashes under all replicas, for longer than it takes
// until a replica counts as dead. Nothing starts, what runs goes on and ends, and when the
// database is back it's recorded, once, with its whole result; all is well by itself.
func TestPostgresGoneForAll(t *testing.T) {
	t.Parallel()
	postgres := harness.NewPostgres(t)
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{DatabaseURL: postgres.Database(), Flags: []string{"--nats-url", harness.NATS(t)}})
	b := a.Beside()
	a.Host("web-01")
	b.WaitState("web-01", "online")
	never := newHeld(t)
	var ids []string
	var short, long []held
	for _, d := range []*harness.Deployment{a, b} { // the caller's replica is the agent's, or not
		for _, of := range []*[]held{&short, &long} {
			h := newHeld(t)
			*of = append(*of, h)
			ids = append(ids, begin(t, &d.Client, "web-01", h.args()))
			h.begun(t)
		}
	}
	postgres.Crash()
	for _, h := range short {
		h.release(t)
	}
	gone := time.Now()
	harness.Eventually(t, time.Minute, "a while without the database", func() bool {
		for i, d := range []*harness.Deployment{a, b} {
			_, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo line >> " + never.effect})
			if res.Error == nil || res.Error.Code != "unavailable" {
				t.Errorf("replica %d without the database: %s %+v", i, res.State, res.Error)
			}
		}
		return time.Since(gone) > 17*time.Second
	})
	postgres.Start()
	works(t, a, "web-01")
	works(t, b, "web-01")
	for _, h := range long {
		h.release(t)
	}
	short[0].ended(t, await(t, &b.Client, ids[0]))
	long[0].ended(t, await(t, &b.Client, ids[1]))
	short[1].ended(t, await(t, &a.Client, ids[2]))
	long[1].ended(t, await(t, &a.Client, ids[3]))
	if n := never.lines(); n != 0 {
		t.Errorf("what was refused ran %d times", n)
	}
	for i, d := range []*harness.Deployment{a, b} {
		if bytes.Contains(d.Server.Log(), []byte("has stopped without a word")) {
			t.Errorf("replica %d took the other one for dead, which could not reach the database either", i)
		}
	}
	oneEach(t, a)
}

// TestAReplicaStopsInEveryPhase: a replica is stopped (SIGSTOP), for so long that the other
// one takes its calls over, while of three calls one's request is on its way to the agent,
// one runs, and one's reply is on its way back. It's the replica that was asked, or the one
// that holds the tunnel. Each call runs once, and has its whole result.
// (What is asked of a replica that is stopped: TestAStoppedReplicaStartsNothingLate.)
func TestAReplicaStopsInEveryPhase(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"holder", "caller"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			stopInEveryPhase(t, who == "holder")
		})
	}
}

func stopInEveryPhase(t *testing.T, holder bool) {
	a, b := replicas(t)
	wire := fault.NewWire(t, addr(a))
	a.HostAt("web-01", wire.URL(), nil)
	b.WaitState("web-01", "online")
	stopped, other := b, a
	if holder {
		stopped, other = a, b
	}
	runs, replies, asked := newHeld(t), newHeld(t), newHeld(t)
	var ids []string
	for _, h := range []held{runs, replies} {
		ids = append(ids, begin(t, &b.Client, "web-01", h.args()))
		h.begun(t)
	}
	asked.release(t)
	atRequest, atReply, frozen := make(chan struct{}), make(chan struct{}), make(chan struct{})
	request, reply := sync.OnceFunc(func() { close(atRequest) }), sync.OnceFunc(func() { close(atReply) })
	wire.Judge(func(f fault.Frame) fault.Verdict {
		switch {
		case f.From == fault.Server && f.Type == protocol.TypeRequest:
			request()
		case f.From == fault.Agent && f.Type == protocol.TypeResponse:
			reply()
		default:
			return fault.Pass
		}
		select {
		case <-frozen:
		case <-f.Gone:
		}
		return fault.Pass
	})
	ids = append(ids, begin(t, &b.Client, "web-01", asked.args()))
	<-atRequest
	replies.release(t)
	<-atReply
	stopped.Server.Freeze()
	defer stopped.Server.Thaw()
	close(frozen)
	wire.Judge(nil)
	harness.Eventually(t, time.Minute, "the other replica takes it for dead", func() bool {
		return bytes.Contains(other.Server.Log(), []byte("has stopped without a word"))
	})
	runs.release(t)
	stopped.Server.Thaw()
	for i, h := range []held{runs, replies, asked} {
		h.ended(t, await(t, &a.Client, ids[i]))
	}
	works(t, a, "web-01")
	works(t, b, "web-01")
	oneEach(t, other)

	// The lines about the one that stood still name it as it does itself, and none is an error:
	// the late answers are those that the record has.
	name := logLines(t, stopped, "serving")[0]["replica"]
	for _, line := range []string{"another replica is silent", "a replica has stopped without a word"} {
		if all := logLines(t, other, line); len(all) == 0 || name == nil || all[0]["replica"] != name {
			t.Errorf("a line about replica %v: %v", name, all)
		}
	}
	taken := logLines(t, stopped, "the other replicas took this one for dead")
	if len(taken) == 0 || taken[0]["replica"] != name || taken[0]["now"] == name {
		t.Errorf("of replica %v: %v", name, taken)
	}
	for _, l := range logLines(t, stopped, "") {
		if l["level"] == "ERROR" && strings.Contains(l["msg"].(string), "outcome") {
			t.Errorf("an error: %v", l)
		}
	}
}

// epoch is the number of the last connection of an agent to this replica.
func epoch(t *testing.T, d *harness.Deployment) (n int) {
	t.Helper()
	all := regexp.MustCompile(`"agent online","agent":"web-01","epoch":(\d+)`).FindAllSubmatch(d.Server.Log(), -1)
	if len(all) == 0 {
		t.Fatal("no agent was online")
	}
	n, _ = strconv.Atoi(string(all[len(all)-1][1]))
	return n
}

// TestARestoredDatabase: all replicas are stopped and started over a copy of the database
// that's older than what the agent remembers. It connects, is called, and its calls from
// after the backup are unknown rather than taken for others.
func TestARestoredDatabase(t *testing.T) {
	t.Parallel()
	postgres := harness.NewPostgres(t)
	before := postgres.Database()
	programs, flags := harness.Build(t, ""), []string{"--nats-url", harness.NATS(t)}
	first := harness.Launch(t, programs, harness.LaunchOptions{DatabaseURL: before, Flags: flags})
	door := fault.NewProxy(t, addr(first))
	first.HostAt("web-01", door.URL(), nil)
	_, kept := first.REST(first.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo kept"})
	open := newHeld(t)
	under := begin(t, &first.Client, "web-01", open.args()) // the backup has its intent alone
	open.begun(t)
	first.Server.Kill()
	backup := postgres.Copy(before)
	first.Serve(addr(first))
	first.WaitState("web-01", "online")
	for range 3 { // the agent's epoch goes beyond the backup's
		door.Cut()
		works(t, first, "web-01")
	}
	newest, lost := epoch(t, first), losing(t, first)
	first.Server.Stop()

	again := first.BesideWith(backup, flags...)
	door.Lead(addr(again))
	other := again.Beside()
	again.WaitState("web-01", "online")
	past{kept: kept.CallID, lost: lost, under: under, open: open, newest: newest}.isBack(t, again, other)
}
