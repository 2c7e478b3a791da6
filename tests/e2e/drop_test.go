package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAClientThatDrops: a client's connection ends while its command runs. Over REST, and in
// the older era of MCP, the command goes on and its whole result is there to be asked for; in
// the era of 2026-07-28, where that is how a client cancels, it's dead, and what it had printed
// is kept.
func TestAClientThatDrops(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	post := func(path string, era harness.Era, body any) *http.Request {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest("POST", f.URL+path, strings.NewReader(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + f.Admin}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		if era != "" {
			req.Header.Set("Mcp-Protocol-Version", string(era))
		}
		if era == harness.Modern {
			req.Header.Set("Mcp-Method", "tools/call")
			req.Header.Set("Mcp-Name", "shell_exec")
		}
		return req
	}
	rpc := func(args map[string]any, meta map[string]any) map[string]any {
		args["agent_id"] = "web-01"
		return map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": "shell_exec", "arguments": args, "_meta": meta}}
	}
	modern := map[string]any{
		"io.modelcontextprotocol/protocolVersion": string(harness.Modern), "io.modelcontextprotocol/clientCapabilities": map[string]any{},
		"io.modelcontextprotocol/clientInfo": map[string]any{"name": "drops", "version": "1"},
	}
	for name, of := range map[string]func(h held) *http.Request{
		"REST": func(h held) *http.Request {
			return post("/api/v1/calls", "", map[string]any{"agent_id": "web-01", "tool": "shell_exec", "args": h.args()})
		},
		string(harness.Legacy): func(h held) *http.Request { return post("/mcp", harness.Legacy, rpc(h.args(), map[string]any{})) },
		string(harness.Modern): func(h held) *http.Request { return post("/mcp", harness.Modern, rpc(h.args(), modern)) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHeld(t)
			before := map[string]bool{}
			for _, r := range f.AllRecords() {
				before[r.CallID] = true
			}
			ctx, drop := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := http.DefaultClient.Do(of(h).WithContext(ctx)); err == nil {
					for b := make([]byte, 4096); err == nil; {
						_, err = resp.Body.Read(b)
					}
					_ = resp.Body.Close()
				}
			}()
			h.begun(t)
			drop()
			<-gone
			id := ""
			for _, r := range f.AllRecords() {
				if r.CallID != "" && !before[r.CallID] {
					id = r.CallID
				}
			}
			if name != string(harness.Modern) {
				h.release(t)
				h.ended(t, await(t, &f.Client, id))
				return
			}
			harness.Eventually(t, 20*time.Second, "the call is cancelled", func() bool { return stateOf(&f.Client, id) == "cancelled" })
			if res := await(t, &f.Client, id); res.Stdout() != "begun\n" || h.lines() != 1 {
				t.Errorf("%s %s, ran %d times", res.State, res.Result, h.lines())
			}
		})
	}
}
