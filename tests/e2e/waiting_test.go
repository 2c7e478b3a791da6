package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestACallThatWaitsForItsTurn: a call to a host that's there, and has as many calls as may run
// there, isn't said to be one for a host that is offline.
func TestACallThatWaitsForItsTurn(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, id := f.PAT("busy", "all", "all", false)
	start := func(command string) (res harness.CallResult) {
		status := f.REST(token).JSON("POST", "/api/v1/calls", map[string]any{
			"agent_id": "web-01", "tool": "shell_exec", "args": map[string]any{"command": command}, "wait_seconds": 1, "queue_for_seconds": 3600,
		}, &res)
		if status != 202 {
			t.Errorf("HTTP %d, the call is %s %+v", status, res.State, res.Error)
		}
		return res
	}
	const most = 48 // of one credential on one host
	var all sync.WaitGroup
	calls := make([]harness.CallResult, most)
	for i := range calls {
		all.Go(func() { calls[i] = start("exec sleep 600") })
	}
	all.Wait()
	last := start("echo its turn")
	if last.State != "queued" {
		t.Fatalf("one more is %s", last.State)
	}
	res, err := f.MCP(token, harness.Modern, nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "call_result", Arguments: map[string]any{"call_id": last.CallID, "wait_seconds": 1}})
	if err != nil || len(res.Content) == 0 {
		t.Fatalf("%v %+v", err, res)
	}
	if said := res.Content[0].(*mcp.TextContent).Text; res.IsError || !strings.Contains(said, "waits for its turn") || strings.Contains(said, "offline") || strings.Contains(said, "0001") {
		t.Errorf("a model reads: %s", said)
	}
	if status, b := f.REST(token).Do("POST", "/api/v1/calls/"+calls[0].CallID+"/cancel", ""); status/100 != 2 {
		t.Fatalf("HTTP %d %s", status, b)
	}
	var end harness.CallResult
	if status := f.REST(token).JSON("GET", "/api/v1/calls/"+last.CallID+"?wait_seconds=30", nil, &end); status != 200 || end.Stdout() != "its turn\n" {
		t.Errorf("HTTP %d %+v", status, end)
	}
	if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status/100 != 2 { // and with it all that sleep
		t.Fatalf("HTTP %d %s", status, b)
	}
	harness.Eventually(t, 20*time.Second, "they end", func() bool { return gauge(t, &f.Client, "drover_calls_open") == 0 })
}
