package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// queue makes a call that waits for its agent at most this many seconds.
func queue(t *testing.T, c *harness.Client, token, agent, effect string, seconds int) harness.CallResult {
	t.Helper()
	var res harness.CallResult
	status := c.REST(token).JSON("POST", "/api/v1/calls", map[string]any{
		"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": "echo line >> " + effect}, "wait_seconds": 1, "queue_for_seconds": seconds,
	}, &res)
	if status != 202 || res.State != "queued" {
		t.Fatalf("HTTP %d, the call is %s %+v", status, res.State, res.Error)
	}
	return res
}

// hostOn runs an agent on a state folder; token is needed by its first start alone.
func hostOn(t *testing.T, d *harness.Deployment, state, token string) *harness.Process {
	t.Helper()
	var env []string
	if token != "" {
		env = []string{"DROVER_ENROLL_TOKEN=" + token}
	}
	return harness.Start(t, env, d.Programs.Path("drover-agent"), "run", "--server", d.URL, "--state", state)
}

// TestR04_QueuedCalls: a call for an agent that is away waits when it was asked to, and then
// runs once; it never runs after its expiry, a cancel, a purge, a new key or its credential's
// end; it survives a restart of the server, also by kill -9, and isn't sent twice by it.
func TestR04_QueuedCalls(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) { queuedCalls(t, engine) })
	}
}

func queuedCalls(t *testing.T, engine harness.Engine) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
	state := filepath.Join(t.TempDir(), "state")
	host := hostOn(t, d, state, d.Run("enroll", "create", "--agent-id", "web-01"))
	d.WaitState("web-01", "online")
	host.Stop()
	d.WaitState("web-01", "offline")

	if _, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" {
		t.Errorf("without being asked to wait: %+v", res)
	}
	token, id := d.PAT("doomed", "all", "all", false)
	runs, expires, cancelled, revoked := newHeld(t), newHeld(t), newHeld(t), newHeld(t)
	first := queue(t, &d.Client, d.Admin, "web-01", runs.effect, 3600)
	second := queue(t, &d.Client, d.Admin, "web-01", expires.effect, 4)
	third := queue(t, &d.Client, d.Admin, "web-01", cancelled.effect, 3600)
	fourth := queue(t, &d.Client, token, "web-01", revoked.effect, 3600)

	if res := await(t, &d.Client, second.CallID); res.State != "expired" || res.Error.Code != "expired" {
		t.Errorf("after its time: %s %+v", res.State, res.Error)
	}
	var res harness.CallResult
	d.REST(d.Admin).JSON("POST", "/api/v1/calls/"+third.CallID+"/cancel", map[string]any{}, &res)
	if res.State != "cancelled" {
		t.Errorf("cancelled while it waits: %s %+v", res.State, res.Error)
	}
	if status, body := d.REST(d.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status >= 300 {
		t.Fatalf("revoke: HTTP %d %s", status, body)
	}
	if res := await(t, &d.Client, fourth.CallID); res.State != "cancelled" {
		t.Errorf("after its credential was revoked: %s %+v", res.State, res.Error)
	}
	addr := strings.TrimPrefix(d.URL, "http://")
	d.Server.Kill()
	d.Serve(addr)
	var now harness.CallResult
	if d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+first.CallID, nil, &now); now.State != "queued" {
		t.Errorf("after the server was killed: %s %+v", now.State, now.Error)
	}
	d.Server.Stop()
	d.Serve(addr)
	host = hostOn(t, d, state, "")
	if res := await(t, &d.Client, first.CallID); res.State != "succeeded" {
		t.Errorf("its agent is back: %s %+v", res.State, res.Error)
	}
	d.Server.Kill()
	d.Serve(addr)
	d.WaitState("web-01", "online")
	if n := runs.lines(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	if expires.lines()+cancelled.lines()+revoked.lines() != 0 {
		t.Errorf("expired ran %d times, cancelled %d, revoked %d", expires.lines(), cancelled.lines(), revoked.lines())
	}
	host.Stop()
	d.WaitState("web-01", "offline")
	purged := []string{}
	for range 3 {
		purged = append(purged, queue(t, &d.Client, d.Admin, "web-01", runs.effect, 3600).CallID)
	}
	var out struct{ Cancelled int }
	if status := d.REST(d.Admin).JSON("POST", "/api/v1/agents/web-01/purge", nil, &out); status != 200 || out.Cancelled != 3 {
		t.Errorf("purge: HTTP %d, %d", status, out.Cancelled)
	}
	for _, id := range purged {
		if res := await(t, &d.Client, id); res.State != "cancelled" {
			t.Errorf("purged: %s %+v", res.State, res.Error)
		}
	}
	rekeyed := queue(t, &d.Client, d.Admin, "web-01", runs.effect, 3600)
	hostOn(t, d, filepath.Join(t.TempDir(), "state"), d.Run("enroll", "create", "--agent-id", "web-01", "--replace"))
	if res := await(t, &d.Client, rekeyed.CallID); res.State != "cancelled" && res.State != "not_started" {
		t.Errorf("its agent has another key: %s %+v", res.State, res.Error)
	}
	if n := runs.lines(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// TestAQueuedCallIsSentOnceForAll: the server that has told the record that it sends doesn't
// send again after its own end, and the agent is told how much of the time is left.
func TestAQueuedCallIsSentOnceForAll(t *testing.T) {
	t.Parallel()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	a := d.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	a.Close()
	d.WaitState("raw-01", "offline")
	call := queue(t, &d.Client, d.Admin, "raw-01", "/dev/null", 600)
	connect(t, a, "journal.boot")
	defer a.Close()
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	if req.ID != call.CallID || req.NotAfterMS < 1 || req.NotAfterMS > 600_000 {
		t.Errorf("the request is for %s and may start within %d ms", req.ID, req.NotAfterMS)
	}
	d.Server.Kill()
	d.Serve(strings.TrimPrefix(d.URL, "http://"))
	connect(t, a, "journal.boot")
	v, err := a.Next(protocol.TypeResume)
	if err != nil {
		t.Fatal(err)
	}
	if ids := v.(*protocol.Resume).IDs; len(ids) != 1 || ids[0] != call.CallID {
		t.Fatalf("asked for %v", ids)
	}
	if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":"journal.boot","states":[{"id":%q,"state":"unseen"}]}`, call.CallID)); err != nil {
		t.Fatal(err)
	}
	if res := await(t, &d.Client, call.CallID); res.State != "not_started" {
		t.Errorf("the call is %s %+v", res.State, res.Error)
	}
	answer := inFlight(&d.Client, a.ID)
	if next := request(t, a, answer); next.ID == call.CallID {
		t.Error("it was sent again")
	} else if err := a.Answer(next.ID, okProcess); err != nil {
		t.Fatal(err)
	}
	<-answer
	kinds := map[string]int{}
	harness.Eventually(t, 10*time.Second, "the record", func() bool {
		clear(kinds)
		for _, r := range d.AllRecords() {
			if r.CallID == call.CallID {
				kinds[r.Kind]++
			}
		}
		return kinds["outcome"] == 1
	})
	if kinds["intent"] != 1 || kinds["sent"] != 1 {
		t.Errorf("the record holds %v", kinds)
	}
}
