package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestWhatIsNoKeyIsRefused: an idempotency key that isn't one is refused on every interface:
// dropped in silence it would let a call run twice.
func TestWhatIsNoKeyIsRefused(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("web-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	for _, key := range []string{`5`, `null`, `true`, `["a"]`, `""`, `"a\u0000b"`, `"` + strings.Repeat("k", 129) + `"`} {
		status, body := f.REST(f.Admin).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"true"},"idempotency_key":`+key+`}`)
		if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity || !strings.Contains(string(body), "bad_args") {
			t.Errorf("REST, %s: HTTP %d %s", key, status, body)
		}
		call := `{"agent_id":"web-01","command":"true"}`
		for era, meta := range map[harness.Era]string{
			harness.Modern: `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},`,
			harness.Legacy: ``,
		} {
			header := http.Header{}
			if era == harness.Modern {
				header.Set("Mcp-Method", "tools/call")
				header.Set("Mcp-Name", "shell_exec")
			}
			for _, more := range []string{"", `"requestState":"",`} { // both ways through the endpoint
				if more != "" && era == harness.Legacy {
					continue
				}
				_, body := f.PostMCP(f.Admin, era, header, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell_exec",%s"arguments":%s,"_meta":{%s"io.github.drover-fleet/idempotency_key":%s}}}`, more, call, meta, key))
				if !strings.Contains(string(body), "bad_args") {
					t.Errorf("MCP %s, %s: %s", era, key, body)
				}
			}
		}
	}
	if n := len(f.AllRecords()); n > 0 {
		for _, r := range f.AllRecords() {
			if r.Kind == "intent" {
				t.Errorf("a call was made: %+v", r)
			}
		}
	}
}

// TestATimeToWaitGoesAlong: a call that may wait so long carries its time to the host also when
// the host seems to be there: it may be frozen.
func TestATimeToWaitGoesAlong(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("web-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	for body, timed := range map[string]bool{`"queue_for_seconds":30`: true, `"wait_seconds":5`: false} {
		go f.REST(f.Admin).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"true"},`+body+`}`)
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		if got := req.NotAfterMS > 0 && req.NotAfterMS <= 30_000; got != timed {
			t.Errorf("%s: not_after is %d ms", body, req.NotAfterMS)
		}
		if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"not_started","message":"no"},"took_us":1}`, req.ID)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestABatchOfOneIsABatch: an array with one call in it is refused as any other, where batches
// aren't spoken any more.
func TestABatchOfOneIsABatch(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	call := `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell_exec","arguments":{"agent_id":"web-01","command":"true"}}}]`
	if resp, body := f.PostMCP(f.Admin, "2025-06-18", nil, call); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("HTTP %d %s", resp.StatusCode, body)
	}
}

// TestAFileNamesItsAgentOnce: the id in the address is decoded once; what it says then is the
// id or none.
func TestAFileNamesItsAgentOnce(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	for id, want := range map[string]int{"web-01": http.StatusOK, "web%2D01": http.StatusOK, "web%252d01": http.StatusNotFound, "w%2565b-01": http.StatusNotFound} {
		if status, body := f.REST(f.Admin).Do("GET", "/api/v1/agents/"+id+"/files?path=/etc/passwd", ""); status != want {
			t.Errorf("%s: HTTP %d %.200s", id, status, body)
		}
	}
}
