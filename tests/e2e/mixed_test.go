//go:build soak && linux

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// published is the commit of the version before this one. Whoever publishes a version sets it.
const published = "504da6041a8e1557f591e488ba20e2fdde962f7e"

// earlier builds the programs that this version runs beside: published, or the commit of
// DROVER_TEST_EARLIER.
func earlier(t *testing.T) harness.Programs {
	t.Helper()
	return harness.Earlier(t, cmp.Or(os.Getenv("DROVER_TEST_EARLIER"), published))
}

// pair is a replica of the version before and one of this version on one database, which was
// the older one's alone, and the programs of both.
type pair struct {
	was, is  *harness.Deployment
	old, new harness.Programs
}

func newPair(t *testing.T) (p pair) {
	p.old, p.new = earlier(t), harness.Build(t, "")
	p.was = harness.Launch(t, p.old, harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t)}})
	p.is = p.was.With(p.new).Beside()
	return p
}

func (p pair) both() []*harness.Deployment { return []*harness.Deployment{p.was, p.is} }

// agent enrols an agent of these programs through d and returns its state folder.
func (p pair) agent(t *testing.T, programs harness.Programs, d *harness.Deployment, id string) (state string, host *harness.Process) {
	t.Helper()
	state = filepath.Join(t.TempDir(), "state")
	host = hostOn(t, d.With(programs), state, d.EnrolToken(id, nil, false))
	d.WaitState(id, "online")
	return state, host
}

// understood holds that no replica refused another's message.
func understood(t *testing.T, when string, ds ...*harness.Deployment) {
	t.Helper()
	for i, d := range ds {
		values, _ := metrics(t, d)
		for name, n := range values {
			if strings.HasPrefix(name, "drover_cluster_refused_total") && n != "0" {
				t.Errorf("%s: replica %d: %s is %s", when, i, name, n)
			}
		}
	}
}

// TestMixedReplicas: a replica and agents of the version before work beside one and agents of
// this version: calls in both directions over both edges, files, cancels, keys, revocations,
// queues, and an agent that moves. Neither refuses what the other says.
func TestMixedReplicas(t *testing.T) {
	p := newPair(t)
	for i, holder := range p.both() {
		for j, programs := range []harness.Programs{p.old, p.new} {
			age := [2]string{"old", "new"}
			id := age[j] + "-on-" + age[i]
			t.Run(id, func(t *testing.T) {
				other := p.both()[1-i]
				p.agent(t, programs, holder, id)
				reaches(t, holder, other, id)
				p.progress(t, other, id)
				p.copies(t, id)
			})
		}
	}
	understood(t, "after calls", p.both()...)
	for i, name := range []string{"to the new one", "to the old one"} {
		from, to := p.both()[i], p.both()[1-i]
		t.Run("an agent moves "+name, func(t *testing.T) { p.moves(t, from, to, fmt.Sprint("mover-", i)) })
		t.Run("a call waits, "+name, func(t *testing.T) { p.waits(t, from, to, fmt.Sprint("waiter-", i)) })
	}
	understood(t, "after moves", p.both()...)
	t.Run("sign-out", p.signOut)
	understood(t, "after sign-outs", p.both()...)
}

// progress calls over MCP with progress through d.
func (p pair) progress(t *testing.T, d *harness.Deployment, id string) {
	t.Helper()
	for _, era := range harness.Eras() {
		var n atomic.Int64
		s := d.MCP(d.Admin, era, &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { n.Add(1) }})
		in := params("shell_exec", map[string]any{"agent_id": id, "command": "for i in 1 2 3; do echo line $i; sleep 1; done"})
		in.SetProgressToken("p")
		if got, err := s.CallTool(t.Context(), in); err != nil || got.IsError {
			t.Errorf("%s: %v %+v", era, err, got)
		}
		if n.Load() == 0 {
			t.Errorf("%s: no progress", era)
		}
	}
}

// copies moves a file with both versions' drover cp, through both replicas.
func (p pair) copies(t *testing.T, id string) {
	t.Helper()
	dir := t.TempDir()
	sum := randomFile(t, filepath.Join(dir, "src"), 3_000_000)
	for i, through := range p.both() {
		for j, programs := range []harness.Programs{p.old, p.new} {
			d, file := through.With(programs), filepath.Join(dir, fmt.Sprint("copy-", i, j))
			startCopy(t, d, filepath.Join(dir, "src"), id+":"+file).wait(t)
			if got := startCopy(t, d, id+":"+file, file+".back").wait(t); got.SHA256 != sum || sumOf(t, file) != sum || sumOf(t, file+".back") != sum {
				t.Errorf("through replica %d by program %d: %+v", i, j, got)
			}
		}
	}
}

// moves lets an agent go from one replica to the other while its call runs, which was made
// through the first: it ends once, whole.
func (p pair) moves(t *testing.T, from, to *harness.Deployment, id string) {
	door := fault.NewProxy(t, addr(from))
	host := from.With(p.new)
	harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + from.EnrolToken(id, nil, false)}, host.Programs.Path("drover-agent"),
		"run", "--server", door.URL(), "--state", filepath.Join(t.TempDir(), "state"))
	from.WaitState(id, "online")
	to.WaitState(id, "online")
	h := newHeld(t)
	call := begin(t, &from.Client, id, h.args())
	h.begun(t)
	door.Lead(addr(to))
	door.Cut()
	harness.Eventually(t, patience, "calls through both", func() bool {
		_, one := from.REST(from.Admin).Call(id, "fs_stat", map[string]any{"path": "/"})
		_, two := to.REST(to.Admin).Call(id, "fs_stat", map[string]any{"path": "/"})
		return one.State == "succeeded" && two.State == "succeeded"
	})
	h.release(t)
	h.ended(t, await(t, &to.Client, call))
}

// waits queues a call through one replica for an agent that comes back to the other.
func (p pair) waits(t *testing.T, from, to *harness.Deployment, id string) {
	state, host := p.agent(t, p.old, from, id)
	to.WaitState(id, "online")
	host.Stop()
	from.WaitState(id, "offline")
	to.WaitState(id, "offline")
	h := newHeld(t)
	call := queue(t, &from.Client, from.Admin, id, h.effect, 600)
	hostOn(t, to.With(p.new), state, "")
	if res := await(t, &from.Client, call.CallID); res.State != "succeeded" || h.lines() != 1 {
		t.Errorf("%s %+v, ran %d times", res.State, res.Error, h.lines())
	}
}

// signOut holds that an older replica beside them keeps no two of this version from telling each
// other of a sign-out, and takes a session of theirs for none.
func (p pair) signOut(t *testing.T) {
	third := p.is.Beside()
	token, id := p.is.PAT("page", "all", "all", false)
	left, kept := signIn(t, p.is, token), signIn(t, third, token)
	byTurns(t, []*harness.Deployment{p.is, third}, left, "beside an older one")
	if status := whoami(t, p.was, left); status != 401 {
		t.Errorf("the older one takes the session: HTTP %d", status)
	}
	if status := withCookie(t, third, "DELETE", "/api/v1/session", left); status != 204 {
		t.Errorf("sign-out: HTTP %d", status)
	}
	signedOut(t, p.is, left, "the other one")
	signedOut(t, p.is.Beside(), left, "one that is new")
	byTurns(t, []*harness.Deployment{p.is, third}, kept, "another session")
	if status, body := p.was.REST(p.was.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status >= 300 {
		t.Fatalf("revoke: HTTP %d %s", status, body)
	}
	for _, d := range []*harness.Deployment{p.is, third} {
		signedOut(t, d, kept, "a replica after the older one revoked its token")
	}
	harness.Eventually(t, patience, "some beats", func() bool {
		values, _ := metrics(t, p.was)
		return values["drover_cluster_replicas"] == "3"
	})
	third.Server.Stop()
}

// TestRollingUpgrade upgrades two replicas and then agents, one after the other, as
// docs/deploy.md says, while calls run; and holds what it says of going back.
func TestRollingUpgrade(t *testing.T) {
	old, now := earlier(t), harness.Build(t, "")
	a := harness.Launch(t, old, harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t)}})
	b := a.Beside()
	p := pair{was: a, is: b, old: old, new: now}
	web, webHost := p.agent(t, old, a, "web-01")
	_, _ = p.agent(t, old, b, "db-01")
	a.WaitState("db-01", "online")

	through := newHeld(t)
	call := begin(t, &a.Client, "db-01", through.args())
	through.begun(t)
	b.Server.Stop()
	b = b.With(now)
	b.Serve(addr(b))
	through.release(t)
	through.ended(t, await(t, &b.Client, call))
	a.WaitState("db-01", "online")
	works(t, a, "db-01")
	works(t, b, "web-01")

	// The older one goes on over the newer schema; once it has ended it doesn't start again.
	if said := a.CLI(nil, "", append([]string{"pat", "create", "--name", "x", "--agents", "all", "--tools", "all"}, a.Store...)...); said.Exit == 0 || !strings.Contains(said.Stderr, "newer Drover") {
		t.Errorf("an older command on the newer schema: exit %d %s", said.Exit, said.Stderr)
	}
	understood(t, "side by side", a, b)
	a.Server.Stop()
	again := harness.Start(t, nil, old.Path("drover"), append([]string{"serve", "--listen", addr(a), "--nats-url", harness.NATS(t)}, a.Store...)...)
	select {
	case <-again.Gone:
	case <-time.After(patience):
		t.Fatal("the older server starts on the newer schema")
	}
	if !strings.Contains(string(again.Log()), "newer Drover") {
		t.Errorf("the older server says %s", again.Log())
	}
	a = a.With(now)
	a.Serve(addr(a))
	b.WaitState("web-01", "online")

	// Agents, and back again; and one that this version has enrolled.
	fresh, freshHost := p.agent(t, now, a, "new-01")
	for _, c := range []struct {
		id, state string
		host      *harness.Process
	}{{"web-01", web, webHost}, {"new-01", fresh, freshHost}} {
		for i, programs := range []harness.Programs{now, old, now} {
			c.host.Stop()
			b.WaitState(c.id, "offline")
			c.host = hostOn(t, a.With(programs), c.state, "")
			a.WaitState(c.id, "online")
			b.WaitState(c.id, "online")
			works(t, b, c.id)
			if t.Failed() {
				t.Fatalf("%s, start %d", c.id, i)
			}
		}
	}
	understood(t, "at the end", a, b)
}
