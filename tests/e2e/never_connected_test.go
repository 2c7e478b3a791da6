package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAnAgentThatNeverConnected: what an enrolled agent offers isn't known before it connects.
// Until then it's offline, by REST, MCP and the command line; what is queued for it is judged
// when it's there, also by a later process of the server: what it doesn't offer isn't sent.
func TestAnAgentThatNeverConnected(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			other := d.RawAgent("raw-01")
			if err := other.Connect(); err != nil { // so that tools are announced by somebody
				t.Fatal(err)
			}
			a := d.RawAgent("raw-02")
			neverConnected(t, d)

			lacks := queue(t, &d.Client, d.Admin, "raw-02", "true", 3600)
			var has harness.CallResult
			d.REST(d.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": "raw-02", "tool": "fs_stat", "args": map[string]any{"path": "/"}, "queue_for_seconds": 3600}, &has)
			if has.State != "queued" {
				t.Fatalf("%+v", has)
			}
			d.Server.Kill()
			d.Serve(addr(d))
			a.Offers = []string{"fs_stat"}
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			if req, err := a.Request(); err != nil || req.ID != has.CallID {
				t.Fatalf("what it offers: %+v, %v", req, err)
			}
			if res := await(t, &d.Client, lacks.CallID); res.State != "not_started" || res.Error == nil || res.Error.Code != "unsupported" {
				t.Errorf("what it doesn't offer: %s %+v", res.State, res.Error)
			}
			if _, res := d.REST(d.Admin).Call("raw-02", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "unsupported" {
				t.Errorf("now that it's known: %+v", res)
			}
			a.Close()
			d.WaitState("raw-02", "offline")
			if _, res := d.REST(d.Admin).Call("raw-02", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "unsupported" {
				t.Errorf("known, and offline: %+v", res)
			}
		})
	}
}

func neverConnected(t *testing.T, d *harness.Deployment) {
	t.Helper()
	const why = "offline (it has never connected)"
	if _, res := d.REST(d.Admin).Call("raw-02", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "offline" || !strings.Contains(res.Error.Message, why) {
		t.Errorf("REST: %+v", res)
	}
	for _, era := range harness.Eras() {
		s := d.MCP(d.Admin, era, nil)
		use := func(tool string, args map[string]any) string {
			got, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: tool, Arguments: args})
			if err != nil {
				t.Fatal(err)
			}
			return got.Content[0].(*mcp.TextContent).Text
		}
		if got := use("shell_exec", map[string]any{"agent_id": "raw-02", "command": "true"}); !strings.Contains(got, why) {
			t.Errorf("%s: %s", era, got)
		}
		if got := use("shell_exec", map[string]any{"agent_id": "raw-02", "command": "true", "queue_for_seconds": 3600}); !strings.Contains(got, "queued") {
			t.Errorf("%s, queued: %s", era, got)
		}
		if got := use("select_agent", map[string]any{"agent_id": "raw-02"}); !strings.Contains(got, "never connected") {
			t.Errorf("%s: select_agent: %s", era, got)
		}
	}
	env := []string{"DROVER_URL=" + d.URL, "DROVER_PAT=" + d.Admin}
	if got := d.CLI(env, "", "call", "--agent", "raw-02", "shell_exec", "command=true"); got.Exit != 255 || !strings.HasPrefix(got.Stderr, "drover: offline") {
		t.Errorf("drover call: %+v", got)
	}
	if got := d.CLI(env, "", "call", "--agent", "raw-02", "--queue-for", "1h", "shell_exec", "command=true"); got.Exit != 75 {
		t.Errorf("drover call --queue-for: %+v", got)
	}
	if got := d.CLI(env, "", "agents", "show", "raw-02"); got.Exit != 0 || strings.Contains(got.Stdout, "system") || strings.Contains(got.Stdout, "offers") {
		t.Errorf("drover agents show: %+v", got)
	}
}
