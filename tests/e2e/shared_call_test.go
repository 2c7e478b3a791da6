package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestWhoDropsOutEndsNoOnesCall: a client of the stateless era whose request ends cancels
// its call, but not one that another caller joined by the same key and still waits for.
func TestWhoDropsOutEndsNoOnesCall(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	dir := t.TempDir()
	gate, mark := filepath.Join(dir, "gate"), filepath.Join(dir, "began")
	script := filepath.Join(dir, "script") // the same argument bytes, however a client escapes
	body := fmt.Sprintf("echo x >> %s\nwhile [ -e %s ] && [ ! -e %s ]; do sleep 0.05; done\necho done\n", mark, mark, gate)
	if err := os.WriteFile(script, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	args := map[string]any{"command": "sh " + script, "timeout_seconds": 60}

	rest := make(chan harness.CallResult, 1)
	go func() {
		var out harness.CallResult
		f.REST(f.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": "web-01", "tool": "shell_exec", "args": args, "idempotency_key": "shared"}, &out)
		rest <- out
	}()
	harness.Eventually(t, 20*time.Second, "the command runs", func() bool { _, err := os.Stat(mark); return err == nil })

	session := f.MCP(f.Admin, harness.Modern, nil)
	ctx, drop := context.WithCancel(t.Context())
	dropped := make(chan error, 1)
	joined := map[string]any{"agent_id": "web-01"}
	for k, v := range args {
		joined[k] = v
	}
	go func() {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{
			Meta: mcp.Meta{"io.github.drover-fleet/idempotency_key": "shared", "progressToken": "p"}, Name: "shell_exec", Arguments: joined,
		})
		dropped <- err
	}()
	harness.Eventually(t, 20*time.Second, "the second caller has joined", func() bool {
		_, b := f.REST(f.Admin).Do("GET", "/metrics", "")
		return strings.Contains(string(b), "drover_calls_joined_total 1")
	})
	drop()
	if err := <-dropped; err == nil {
		t.Fatal("the second caller got an answer before it dropped")
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-rest; got.State != "succeeded" || got.Stdout() != "done\n" {
		t.Errorf("the first caller got %+v %+v", got, got.Error)
	}
	if b, _ := os.ReadFile(mark); string(b) != "x\n" {
		t.Errorf("it ran %d times", len(b)/2)
	}
}

// TestAgentMayNotKnow: an agent that says it can't know how a call ends is believed: the
// outcome is unknown, never failed.
func TestAgentMayNotKnow(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("stuck-01")
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	answer := inFlight(&f.Client, a.ID)
	req := request(t, a, answer)
	if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"outcome_unknown","reason":"left_behind","message":"42 could not be killed"},"took_us":1}`, req.ID)); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got.State != "outcome_unknown" || got.Error == nil || got.Error.Code != "outcome_unknown" || !strings.Contains(got.Error.Message, "42") {
		t.Errorf("%+v %+v", got, got.Error)
	}
}

// TestLosingScopeEndsTheCall: relabelling an agent out of a selector's reach ends what runs
// there by that right.
func TestLosingScopeEndsTheCall(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	label := func(env string) {
		if s, b := f.REST(f.Admin).Do("PATCH", "/api/v1/agents/web-01", fmt.Sprintf(`{"labels":{"env":%q}}`, env)); s != 200 {
			t.Fatalf("label: %d %s", s, b)
		}
	}
	label("lab")
	token, _ := f.PAT("lab", "env=lab", "all", false)
	mark := filepath.Join(t.TempDir(), "began")
	done := make(chan harness.CallResult, 1)
	go func() {
		_, res := f.REST(token).Call("web-01", "shell_exec", map[string]any{"command": "touch " + mark + "; sleep 60"})
		done <- res
	}()
	harness.Eventually(t, 20*time.Second, "the command runs", func() bool { _, err := os.Stat(mark); return err == nil })
	label("prod")
	select {
	case res := <-done:
		if res.State != "cancelled" {
			t.Errorf("ended as %s: %+v", res.State, res.Error)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it runs on")
	}
}
