package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// sharedDoors are what stands between one replica and what it shares with the others.
type sharedDoors struct{ nats, postgres *fault.Proxy }

// replicasBehindDoors starts two servers on one database and one NATS; the second reaches
// both through doors.
func replicasBehindDoors(t *testing.T) (a, b *harness.Deployment, d sharedDoors) {
	t.Helper()
	nats, db := harness.NATS(t), harness.PostgresSchema(t)
	a = harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{DatabaseURL: db, Flags: []string{"--nats-url", nats}})
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	d.postgres, d.nats = fault.NewProxy(t, u.Host), fault.NewProxy(t, strings.TrimPrefix(nats, "nats://"))
	u.Host = d.postgres.Addr()
	b = a.BesideWith(u.String(), "--nats-url", "nats://"+d.nats.Addr())
	return a, b, d
}

func away(p *fault.Proxy, yes bool) {
	p.Refuse(yes)
	if yes {
		p.Cut()
	}
}

// TestNATSGone: the agents of a replica that lost NATS go on there, those of others are
// offline with the reason, calls under way across are found again, and all is well by itself
// when it's back.
func TestNATSGone(t *testing.T) {
	t.Parallel()
	a, b, d := replicasBehindDoors(t)
	a.Host("web-01")
	b.Host("db-01")
	a.WaitState("db-01", "online")
	b.WaitState("web-01", "online")
	h := newHeld(t)
	id := begin(t, &b.Client, "web-01", h.args())
	h.begun(t)
	away(d.nats, true)
	b.WaitState("web-01", "offline")
	if _, res := b.REST(b.Admin).Call("db-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
		t.Errorf("the replica's own agent: %s %+v", res.State, res.Error)
	}
	if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" || !strings.Contains(res.Error.Message, "NATS") {
		t.Errorf("another replica's agent: %s %+v", res.State, res.Error)
	}
	if _, res := a.REST(a.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
		t.Errorf("on the other replica: %s %+v", res.State, res.Error)
	}
	a.WaitState("db-01", "offline")
	away(d.nats, false)
	a.WaitState("db-01", "online")
	b.WaitState("web-01", "online")
	h.release(t)
	h.ended(t, await(t, &b.Client, id))
	if _, res := a.REST(a.Admin).Call("db-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
		t.Errorf("once it's back: %s %+v", res.State, res.Error)
	}
}

// TestPostgresGoneForOneReplica: it starts nothing, what runs ends, the other one takes its
// calls over and each has one outcome.
func TestPostgresGoneForOneReplica(t *testing.T) {
	t.Parallel()
	a, b, d := replicasBehindDoors(t)
	a.Host("web-01")
	b.WaitState("web-01", "online")
	short, long, never := newHeld(t), newHeld(t), newHeld(t)
	first := begin(t, &b.Client, "web-01", short.args())
	second := begin(t, &b.Client, "web-01", long.args())
	short.begun(t)
	long.begun(t)
	away(d.postgres, true)
	if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo line >> " + never.effect}); res.Error == nil || res.Error.Code != "unavailable" {
		t.Errorf("without its database: %s %+v", res.State, res.Error)
	}
	short.release(t)
	short.ended(t, await(t, &a.Client, first)) // taken over, or recorded
	away(d.postgres, false)
	long.release(t)
	long.ended(t, await(t, &b.Client, second))
	harness.Eventually(t, 30*time.Second, "calls once it's back", func() bool {
		_, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
		return res.State == "succeeded"
	})
	if n := never.lines(); n != 0 {
		t.Errorf("a call that could not be recorded ran %d times", n)
	}
}

// TestAReplicaStopsInOrder: its calls belong to the others at once, who bring them to their
// ends, and its callers find them there.
func TestAReplicaStopsInOrder(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	b.Host("web-01")
	a.WaitState("web-01", "online")
	h := newHeld(t)
	id := begin(t, &a.Client, "web-01", h.args())
	h.begun(t)
	a.Server.Stop()
	h.release(t)
	h.ended(t, await(t, &b.Client, id))
	left := 0
	for _, l := range logLines(t, a, "") {
		if l["level"] == "ERROR" {
			t.Errorf("an error, though it stopped in order: %v", l)
		}
		if strings.Contains(l["msg"].(string), "under way at the end") || strings.Contains(l["msg"].(string), "calls are left") {
			left++
		}
	}
	if left != 1 {
		t.Errorf("%d lines about what was under way:\n%s", left, a.Server.Log())
	}
}

// logLines are the lines of a server's log whose message begins so.
func logLines(t *testing.T, d *harness.Deployment, begin string) (out []map[string]any) {
	t.Helper()
	for line := range bytes.Lines(d.Server.Log()) {
		var l map[string]any
		if json.Unmarshal(line, &l) != nil { // not the log's
			continue
		}
		if msg, ok := l["msg"].(string); ok && strings.HasPrefix(msg, begin) {
			out = append(out, l)
		}
	}
	return out
}

// TestAReplicaGivesWay: one that's asked to stop lets nobody connect any more, and does what
// comes over a connection that was kept as before, as the last on that. A file that passes
// through it from another replica to its agent isn't broken off.
func TestAReplicaGivesWay(t *testing.T) {
	a, b := replicas(t)
	a.Host("web-01")
	b.WaitState("web-01", "online")
	kept, err := net.Dial("tcp", addr(a))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	answers := bufio.NewReader(kept)
	ask := func(method, path, body string) (*http.Response, string) {
		t.Helper()
		_, err := fmt.Fprintf(kept, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			method, path, addr(a), a.Admin, len(body), body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	if resp, body := ask("GET", "/api/v1/agents", ""); resp.StatusCode != http.StatusOK || resp.Close {
		t.Fatalf("HTTP %d %s", resp.StatusCode, body)
	}
	target := filepath.Join(t.TempDir(), "file")
	content, more := io.Pipe()
	uploaded := make(chan int, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, b.URL+"/api/v1/agents/web-01/files?path="+target, content)
		req.Header.Set("Authorization", "Bearer "+b.Admin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			uploaded <- 0
			return
		}
		_ = resp.Body.Close()
		uploaded <- resp.StatusCode
	}()
	if _, err := io.WriteString(more, "begun "); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, "the file is on its way", func() bool {
		at, _ := metrics(t, a)
		return at["drover_cluster_calls_in"] == "1"
	})

	stopped := make(chan struct{})
	began := time.Now()
	go func() { a.Server.Stop(); close(stopped) }()
	harness.Eventually(t, 20*time.Second, "nobody can connect", func() bool {
		c, err := net.Dial("tcp", addr(a))
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	resp, body := ask("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"true"}}`)
	if !resp.Close || !strings.Contains(body, `"state":"succeeded"`) {
		t.Errorf("over the kept connection: HTTP %d, the last one: %v, %s", resp.StatusCode, resp.Close, body)
	}
	// Longer than it gives way, and shorter than calls have to end.
	harness.Eventually(t, 20*time.Second, "some time", func() bool { return time.Since(began) > 4*time.Second })
	if _, err := io.WriteString(more, "ended"); err != nil {
		t.Error(err)
	}
	_ = more.Close()
	if status := <-uploaded; status/100 != 2 {
		t.Errorf("the file: HTTP %d", status)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "begun ended" {
		t.Errorf("the file is %q, %v", got, err)
	}
	<-stopped
}

// TestARequestThatWentWithItsReplica: a request that was on its way to the agent when the
// replica that holds the tunnel stopped didn't begin, and that's known once the agent says so
// to the other one.
func TestARequestThatWentWithItsReplica(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	door := fault.NewProxy(t, addr(a))
	a.HostAt("web-01", door.URL(), nil)
	b.WaitState("web-01", "online")
	door.Freeze()
	h := newHeld(t)
	id := begin(t, &b.Client, "web-01", h.args())
	a.Server.Stop()
	door.Lead(addr(b))
	door.Cut()
	door.Thaw()
	if res := await(t, &b.Client, id); res.State != "not_started" || h.lines() != 0 {
		t.Errorf("%s %+v; it ran %d times", res.State, res.Error, h.lines())
	}
}

// TestACopyOnAnotherReplica: of a copied state folder the copy isn't let in beside the
// original, also when that is connected to another replica; and from then on nowhere, also
// when the original is gone.
func TestACopyOnAnotherReplica(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	state := filepath.Join(t.TempDir(), "state")
	original := hostOn(t, a, state, a.Run("enroll", "create", "--agent-id", "web-01"))
	b.WaitState("web-01", "online")
	duplicate := state + "-copy"
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", state, duplicate).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	intruder := hostOn(t, b, duplicate, "")
	harness.Eventually(t, 30*time.Second, "the copy is refused", func() bool {
		return strings.Contains(string(intruder.Log()), "refuses this agent (duplicate)")
	})
	for range 20 {
		for _, d := range []*harness.Deployment{a, b} {
			_, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo $PPID"})
			if res.State != "succeeded" || strings.TrimSpace(res.Stdout()) != fmt.Sprint(original.Cmd.Process.Pid) {
				t.Errorf("the original: %s %+v, by %q", res.State, res.Error, res.Stdout())
			}
		}
	}
	harness.Eventually(t, 30*time.Second, "the original has connected anew", func() bool {
		return strings.Count(string(original.Log()), "msg=connected") == 2
	})
	b.WaitState("web-01", "online")
	intruder.Stop()
	original.Stop()
	for _, d := range []*harness.Deployment{b, a} {
		d.WaitState("web-01", "offline")
		intruder = hostOn(t, d, duplicate, "")
		harness.Eventually(t, 30*time.Second, "the copy is refused while it's alone", func() bool {
			return strings.Contains(string(intruder.Log()), "refuses this agent (quarantined)")
		})
		if _, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" {
			t.Errorf("with the copy alone a call is %s %+v", res.State, res.Error)
		}
		intruder.Stop()
		if strings.Contains(string(intruder.Log()), "msg=connected") {
			t.Errorf("the copy was let in:\n%s", intruder.Log())
		}
	}
}

// TestTwoTunnelsOnTwoReplicas: an agent moves to and fro a hundred times; its old connection
// closes late. It's callable through both replicas throughout.
func TestTwoTunnelsOnTwoReplicas(t *testing.T) {
	a, b := replicas(t)
	both := []*harness.Deployment{a, b}
	raw := a.RawAgent("web-01")
	raw.Instance = "one-process"
	if err := raw.Connect(); err != nil {
		t.Fatal(err)
	}
	var answered sync.Map
	go serve(raw, &answered)
	b.WaitState("web-01", "online")
	late := 0
	for i := range 100 {
		next := raw.At(&both[(i+1)%2].Client)
		if err := next.Connect(); err != nil {
			t.Fatalf("move %d: %v", i, err)
		}
		go serve(next, &answered)
		for range 2 {
			for _, d := range both {
				call := func() harness.CallResult {
					_, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
					return res
				}
				res := call()
				// What was on its way in the old connection as that closed, before its replica had
				// heard of the newer one, never began, and isn't sent twice (docs/guarantees.md): on
				// a busy machine that happens.
				if res.State == "not_started" && late < 2 {
					late++
					t.Logf("move %d: again: %+v", i, res.Error)
					res = call()
				}
				if res.State != "succeeded" {
					t.Errorf("move %d: %s %+v", i, res.State, res.Error)
				}
			}
			raw.Close() // late, and a second time
		}
		raw = next
	}
	raw.Close()
}

// TestBetweenTwoTunnels: a replica that has heard of the end of an agent's old connection, and not
// yet of the newer one on another replica, lets a call wait for it. Of an agent that stays away it
// says so soon.
func TestBetweenTwoTunnels(t *testing.T) {
	a, b, d := replicasBehindDoors(t)
	raw := a.RawAgent("web-01")
	raw.Instance = "one-process"
	var answered sync.Map
	connect := func(at *harness.Deployment) (old *harness.RawAgent) {
		old, raw = raw, raw.At(&at.Client)
		if err := raw.Connect(); err != nil {
			t.Fatal(err)
		}
		go serve(raw, &answered)
		harness.Eventually(t, 20*time.Second, "its tunnel is there", func() bool { return gauge(t, &at.Client, "drover_agents_online") == 1 })
		return old
	}
	gone := func() {
		harness.Eventually(t, 20*time.Second, "its tunnel is gone", func() bool { return gauge(t, &b.Client, "drover_agents_online") == 0 })
	}
	const late = 400 * time.Millisecond
	d.nats.Shape(fault.Link{}, fault.Link{Delay: late}) // so late is what b hears
	for i := range 5 {
		connect(b)
		connect(a).Close()
		gone()
		began := time.Now()
		if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
			t.Errorf("move %d: %s %+v after %s", i, res.State, res.Error, time.Since(began))
		}
	}
	connect(b).Close()
	harness.Eventually(t, 20*time.Second, "b has heard that it's nowhere else", func() bool { return gauge(t, &b.Client, "drover_cluster_agents") == 0 })
	raw.Close()
	gone()
	for range 2 { // the second comes when the moment is over
		if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" {
			t.Errorf("of an agent that stays away: %s %+v", res.State, res.Error)
		}
	}
	if n := gauge(t, &b.Client, "drover_waits_open"); n != 0 {
		t.Errorf("%d requests still wait", n)
	}
}

// serve answers every request, and tells of those that any of its agent's connections answered.
func serve(r *harness.RawAgent, answered *sync.Map) {
	for {
		frame, err := r.Next("")
		switch f := frame.(type) {
		case *protocol.Request:
			answered.Store(f.ID, true)
			err = r.Answer(f.ID, okProcess)
		case *protocol.Ping:
			err = r.Send(fmt.Sprintf(`{"type":"pong","n":%d}`, f.N))
		case *protocol.Resume:
			for _, id := range f.IDs {
				if _, done := answered.Load(id); !done {
					err = r.Send(fmt.Sprintf(`{"type":"resume","boot":"raw-web-01","states":[{"id":%q,"state":"unseen"}]}`, id))
				} else if err = r.Send(fmt.Sprintf(`{"type":"resume","boot":"raw-web-01","states":[{"id":%q,"state":"done"}]}`, id)); err == nil {
					err = r.Answer(id, okProcess)
				}
			}
		}
		if err != nil {
			return
		}
	}
}
