package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestArgumentsOfOpenCalls: what a credential's open calls carry is bounded, since it's kept
// until they end, whoever waits for them.
func TestArgumentsOfOpenCalls(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("web-02")
	token, _ := f.PAT("hoards", "all", "all", false)
	other, _ := f.PAT("other", "all", "all", false)
	const size, fit = 1 << 20, 63 // 64 MiB with what's around them
	body := fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","wait_seconds":1,"args":{"command":"sleep 600","stdin":%q}}`, strings.Repeat("x", size))
	call := func(token string) (int, harness.CallResult) {
		var res harness.CallResult
		status, b := f.REST(token).Do("POST", "/api/v1/calls", body)
		if err := json.Unmarshal(b, &res); err != nil {
			t.Errorf("HTTP %d %.200s", status, b)
		}
		return status, res
	}
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	for range 9 {
		wg.Go(func() {
			for range fit / 9 {
				status, res := call(token)
				if status != 202 {
					t.Errorf("HTTP %d %+v", status, res.Error)
				}
				mu.Lock()
				ids = append(ids, res.CallID)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if status, res := call(token); status != 429 || res.Error.Reason != "principal_open_bytes" {
		t.Fatalf("one more: HTTP %d %+v", status, res.Error)
	}
	if status, res := f.REST(token).Call("web-02", "shell_exec", map[string]any{"command": "echo fine"}); status != 200 || res.Stdout() != "fine\n" {
		t.Errorf("a small call of its own: HTTP %d %+v", status, res.Error)
	}
	if status, res := call(other); status != 202 {
		t.Errorf("a large call of another: HTTP %d %+v", status, res.Error)
	}
	for _, id := range ids {
		if status, b := f.REST(token).Do("POST", "/api/v1/calls/"+id+"/cancel", ""); status/100 != 2 {
			t.Errorf("cancel: HTTP %d %s", status, b)
		}
	}
	harness.Eventually(t, 20*time.Second, "what has ended holds nothing", func() bool {
		status, _ := call(token)
		return status == 202
	})
}

// written is a log that may be read while it's written.
type written struct {
	mu  sync.Mutex
	all strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// TestWhoLeavesACallLeavesNothing: a caller that joined a call, or asked for its end, and
// dropped leaves neither its request in memory until the call ends, nor an error in the log, nor
// a refusal in the record.
func TestWhoLeavesACallLeavesNothing(t *testing.T) {
	var log written
	f := harness.New(t, harness.Options{LogTo: &log})
	f.Agent("web-01")
	token, _ := f.PAT("joins", "all", "all", false)
	const joins, size = 48, 1 << 20
	args := fmt.Sprintf(`"command":"sleep 600","stdin":%q`, strings.Repeat("x", size))
	status, b := f.REST(token).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","wait_seconds":1,"idempotency_key":"shared","args":{`+args+`}}`)
	var first harness.CallResult
	if err := json.Unmarshal(b, &first); err != nil || status != 202 {
		t.Fatalf("HTTP %d %.200s", status, b)
	}
	meta := `"_meta":{"io.github.drover-fleet/idempotency_key":"shared","progressToken":"t","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools kept goes with the second
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	// drops sends calls of a tool, and ends their connections once they all wait.
	drops := func(n int, tool, params string) {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `",` + params + `,` + meta + `}}`
		var open []net.Conn
		for range n {
			c, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			open = append(open, c)
			if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: %s\r\nContent-Length: %d\r\n\r\n%s",
				token, tool, len(body), body); err != nil {
				t.Fatal(err)
			}
		}
		harness.Eventually(t, 60*time.Second, "all wait", func() bool { return gauge(t, &f.Client, "drover_waits_open") == n })
		for _, c := range open {
			_ = c.Close()
		}
		harness.Eventually(t, 20*time.Second, "all have left", func() bool {
			return gauge(t, &f.Client, "drover_waits_open") == 0 && gauge(t, &f.Client, "drover_body_bytes") == 0
		})
	}
	drops(1, "shell_exec", `"arguments":{"agent_id":"web-01",`+args+`}`) // what is made once
	before := heap()
	drops(joins, "shell_exec", `"arguments":{"agent_id":"web-01",`+args+`}`)
	if more := heap() - before; more > joins*size/2 {
		t.Errorf("%d requests of %d bytes have left, and %d bytes more are held", joins, size, more)
	}
	drops(3, "call_result", `"arguments":{"call_id":"`+first.CallID+`","wait_seconds":50}`)
	if status, b := f.REST(token).Do("POST", "/api/v1/calls/"+first.CallID+"/cancel", ""); status/100 != 2 || !strings.Contains(string(b), `"cancelled"`) {
		t.Errorf("the call didn't go on until now: HTTP %d %s", status, b)
	}
	if strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("the log has an error:\n%s", log.String())
	}
	if _, b := f.REST(f.Admin).Do("GET", "/api/v1/audit?kind=refusal", ""); strings.Contains(string(b), "call_result") || strings.Contains(string(b), "shell_exec") {
		t.Errorf("the record: %s", b)
	}
}

// TestWhatABodyCosts: a body that takes many times its bytes once it's decoded goes nowhere, over
// either edge and in either era, and a session that it would have begun isn't there. Large
// arguments that are honest come through, also where the SDK has them.
func TestWhatABodyCosts(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, _ := f.PAT("blows-up", "all", "all", false)
	refused := func(what string, status int, body []byte) {
		t.Helper()
		if status != 413 || !strings.Contains(string(body), "too_large") || !strings.Contains(string(body), "JSON values") {
			t.Errorf("%s: HTTP %d %.300s", what, status, body)
		}
	}
	begin := func(experimental string) (*http.Response, []byte) {
		return f.PostMCP(token, harness.Legacy, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"experimental":{"a":`+experimental+`}},"clientInfo":{"name":"t","version":"1"}}}`)
	}
	objects := func(n int) string { return "[{}" + strings.Repeat(",{}", n) + "]" }
	for what, x := range map[string]string{"many values": objects(5000), "many bytes": `"` + strings.Repeat("x", 80<<10) + `"`, "as many as the body takes": objects(1_300_000)} {
		resp, body := begin(x)
		refused("initialize with "+what, resp.StatusCode, body)
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			t.Errorf("initialize with %s began session %s", what, id)
		}
	}
	resp, body := begin(objects(500))
	session := http.Header{"Mcp-Session-Id": {resp.Header.Get("Mcp-Session-Id")}}
	if resp.StatusCode != 200 {
		t.Fatalf("an ordinary initialize: HTTP %d %s", resp.StatusCode, body)
	}
	modern := http.Header{"Mcp-Method": {"tools/call"}, "Mcp-Name": {"fs_write"}}
	ways := map[string]func(string) (*http.Response, []byte){
		"a session": func(p string) (*http.Response, []byte) {
			return f.PostMCP(token, harness.Legacy, session, toolsCall(harness.Legacy, p))
		},
		"without one": func(p string) (*http.Response, []byte) {
			return f.PostMCP(token, harness.Legacy, nil, toolsCall(harness.Legacy, p))
		},
		"the modern era": func(p string) (*http.Response, []byte) {
			return f.PostMCP(token, harness.Modern, modern, toolsCall(harness.Modern, p))
		},
		"its SDK": func(p string) (*http.Response, []byte) {
			return f.PostMCP(token, harness.Modern, modern, toolsCall(harness.Modern, p+`,"task":{}`))
		},
	}
	file, size := filepath.Join(t.TempDir(), "written"), 2<<20
	args := func(more string) string {
		return fmt.Sprintf(`{"path":%q,"content":%q%s}`, file, strings.Repeat("x", size), more)
	}
	junk := objects(150_000)
	for name, send := range ways {
		write := `"name":"fs_write","arguments":{"agent_id":"web-01",` + args("")[1:]
		resp, body := send(write)
		if b, _ := os.ReadFile(file); resp.StatusCode != 200 || len(b) != size {
			t.Errorf("%s: a large file: HTTP %d %.300s", name, resp.StatusCode, body)
		}
		_ = os.Remove(file)
		resp, body = send(`"name":"fs_write","arguments":{"agent_id":"web-01",` + args(`,"x":` + junk)[1:])
		refused(name+": arguments of many values", resp.StatusCode, body)
		if name != "the modern era" && name != "its SDK" {
			resp, body = send(write + `,"_meta":{"x":` + objects(5000) + `}`)
			refused(name+": _meta of many values", resp.StatusCode, body)
		}
	}
	status, body := f.REST(token).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"fs_write","args":`+args(`,"x":`+junk)+`}`)
	refused("REST", status, body)
	if status, body := f.REST(token).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"fs_write","args":`+args("")+`}`); status != 200 {
		t.Errorf("REST: a large file: HTTP %d %.300s", status, body)
	}
}
