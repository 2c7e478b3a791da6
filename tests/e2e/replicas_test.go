package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// replicas starts two servers on one database and one NATS.
func replicas(t *testing.T) (a, b *harness.Deployment) {
	t.Helper()
	a = harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t)}})
	return a, a.Beside()
}

func addr(d *harness.Deployment) string { return strings.TrimPrefix(d.URL, "http://") }

// TestACallReachesAnAgentOfAnotherReplica: what works on the replica that holds the tunnel
// works on the other one, with the same answers.
func TestACallReachesAnAgentOfAnotherReplica(t *testing.T) {
	a, b := replicas(t)
	a.Host("web-01")
	reaches(t, a, b, "web-01")
}

// reaches calls an agent that is connected to a through both replicas, in every way there is.
func reaches(t *testing.T, a, b *harness.Deployment, agent string) {
	t.Helper()
	b.WaitState(agent, "online")

	_, res := b.REST(b.Admin).Call(agent, "shell_exec", map[string]any{"command": "echo $DROVER_AGENT_ID $DROVER_CALL_ID; exit 3"})
	if res.State != "succeeded" || res.Stdout() != agent+" "+res.CallID+"\n" || !strings.Contains(string(res.Result), `"exit_code":3`) {
		t.Errorf("a command: %s %s %+v", res.State, res.Result, res.Error)
	}
	if _, res := b.REST(b.Admin).Call(agent, "fs_stat", map[string]any{"path": "/no/such"}); res.Error == nil || res.Error.Code != "tool_failed" || res.Error.Reason != "enoent" {
		t.Errorf("a tool's own failure: %+v", res.Error)
	}
	big := strings.Repeat("0123456789abcdef", 60_000)
	file := filepath.Join(t.TempDir(), "big")
	if _, res := b.REST(b.Admin).Call(agent, "fs_write", map[string]any{"path": file, "content": big}); res.State != "succeeded" {
		t.Errorf("a large request: %s %+v", res.State, res.Error)
	}
	status, got := b.REST(b.Admin).Do("GET", "/api/v1/agents/"+agent+"/files?path="+file, "")
	if status != 200 || !bytes.Equal(got, []byte(big)) {
		t.Errorf("a file from the host: HTTP %d, %d bytes", status, len(got))
	}
	if status, body := b.REST(b.Admin).Do("PUT", "/api/v1/agents/"+agent+"/files?path="+file+".put", big); status >= 300 {
		t.Errorf("a file to the host: HTTP %d %s", status, body)
	}
	if got, err := os.ReadFile(file + ".put"); err != nil || string(got) != big {
		t.Errorf("the file on the host: %d bytes, %v", len(got), err)
	}
	for _, era := range harness.Eras() {
		t.Run(string(era), func(t *testing.T) { bothEdges(t, []*harness.Deployment{a, b}, era, agent) })
	}

	// Whoever has a call under way, the other one tells of it, and ends it.
	h := newHeld(t)
	id := begin(t, &b.Client, agent, h.args())
	h.begun(t)
	var now harness.CallResult
	if a.REST(a.Admin).JSON("GET", "/api/v1/calls/"+id, nil, &now); now.State != "dispatched" {
		t.Errorf("seen from the other replica it's %s", now.State)
	}
	a.REST(a.Admin).JSON("POST", "/api/v1/calls/"+id+"/cancel", map[string]any{}, &now)
	if now.State != "cancelled" || now.Stdout() != "begun\n" {
		t.Errorf("cancelled from the other replica: %s %s %+v", now.State, now.Result, now.Error)
	}

	// One key is one call, wherever it's used.
	var one, two harness.CallResult
	call := map[string]any{"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": "date +%N"}, "idempotency_key": "k-" + agent}
	a.REST(a.Admin).JSON("POST", "/api/v1/calls", call, &one)
	b.REST(b.Admin).JSON("POST", "/api/v1/calls", call, &two)
	if one.CallID != two.CallID || one.Stdout() != two.Stdout() {
		t.Errorf("one key made %s and %s", one.CallID, two.CallID)
	}

	// A credential that's revoked on one is dead on all.
	token, pat := a.PAT("doomed", "all", "all", false)
	harness.Eventually(t, 5*time.Second, "a new token counts on the other replica", func() bool {
		status, _ := b.REST(token).Do("GET", "/api/v1/agents", "")
		return status == 200
	})
	if status, body := a.REST(a.Admin).Do("DELETE", "/api/v1/pats/"+pat, ""); status >= 300 {
		t.Fatalf("revoke: HTTP %d %s", status, body)
	}
	harness.Eventually(t, 5*time.Second, "a revoked token is dead on the other replica", func() bool {
		status, _ := b.REST(token).Do("GET", "/api/v1/agents", "")
		return status == 401
	})
}

// bothEdges calls by turns through both replicas with one client's credential.
func bothEdges(t *testing.T, ds []*harness.Deployment, era harness.Era, agent string) {
	for i := range 6 {
		d := ds[i%2]
		s := d.MCP(d.Admin, era, nil)
		got, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"agent_id": agent, "command": fmt.Sprintf("echo turn %d", i)}})
		if err != nil || got.IsError || !strings.Contains(got.Content[0].(*mcp.TextContent).Text, fmt.Sprintf("turn %d", i)) {
			t.Errorf("turn %d: %v %+v", i, err, got)
		}
	}
}

// TestACallSurvivesItsReplicas: the replica that has the call, or the one that holds the
// tunnel, is killed while a command runs; the agent moves to another replica; each time the
// call ends with its whole result, having run once.
func TestACallSurvivesItsReplicas(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	door := fault.NewProxy(t, addr(a))
	a.HostAt("web-01", door.URL(), nil)
	b.WaitState("web-01", "online")

	moved, orphaned, torn := newHeld(t), newHeld(t), newHeld(t)
	first := begin(t, &a.Client, "web-01", moved.args())
	moved.begun(t)
	door.Lead(addr(b)) // the agent goes to the other replica
	door.Cut()
	harness.Eventually(t, 30*time.Second, "calls through both replicas", func() bool {
		_, one := a.REST(a.Admin).Call("web-01", "fs_stat", map[string]any{"path": "/"})
		_, two := b.REST(b.Admin).Call("web-01", "fs_stat", map[string]any{"path": "/"})
		return one.State == "succeeded" && two.State == "succeeded"
	})
	moved.release(t)
	moved.ended(t, await(t, &a.Client, first))

	second := begin(t, &a.Client, "web-01", orphaned.args())
	orphaned.begun(t)
	a.Server.Kill() // it had the call, the other one has the tunnel
	orphaned.release(t)
	orphaned.ended(t, await(t, &b.Client, second))

	c := b.Beside()
	c.WaitState("web-01", "online")
	third := begin(t, &c.Client, "web-01", torn.args())
	torn.begun(t)
	door.Lead(addr(c))
	b.Server.Kill() // it held the tunnel, the third has the call
	c.WaitState("web-01", "online")
	torn.release(t)
	torn.ended(t, await(t, &c.Client, third))
}

// TestAStoppedReplicaStartsNothingLate: a replica that was stopped for long enough to be taken
// for dead runs nothing of what it had been asked for, and goes on when it's back.
func TestAStoppedReplicaStartsNothingLate(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	a.Host("web-01")
	b.WaitState("web-01", "online")
	h := newHeld(t)
	a.Server.Freeze()
	late := make(chan harness.CallResult, 1)
	go func() {
		_, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo line >> " + h.effect, "timeout_seconds": 5})
		late <- res
	}()
	b.WaitState("web-01", "offline")
	if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" {
		t.Errorf("an agent of a replica that is silent: %s %+v", res.State, res.Error)
	}
	a.Server.Thaw()
	b.WaitState("web-01", "online")
	res := <-late
	switch res.State {
	case "not_started", "outcome_unknown", "":
	default:
		t.Errorf("the call through the stopped replica is %s %+v", res.State, res.Error)
	}
	harness.Eventually(t, 30*time.Second, "calls after it's back", func() bool {
		_, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
		return res.State == "succeeded"
	})
	if n := h.lines(); n != 0 {
		t.Errorf("what was asked of it while it was stopped ran %d times", n)
	}
}

// TestQueuedOnAnotherReplica: a call queued on one replica is sent when the agent connects to
// the other one.
func TestQueuedOnAnotherReplica(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	state := filepath.Join(t.TempDir(), "state")
	host := hostOn(t, a, state, a.Run("enroll", "create", "--agent-id", "web-01"))
	b.WaitState("web-01", "online")
	host.Stop()
	b.WaitState("web-01", "offline")
	h := newHeld(t)
	call := queue(t, &b.Client, b.Admin, "web-01", h.effect, 600)
	hostOn(t, a, state, "")
	if res := await(t, &b.Client, call.CallID); res.State != "succeeded" || h.lines() != 1 {
		t.Errorf("%s %+v, ran %d times", res.State, res.Error, h.lines())
	}
}
