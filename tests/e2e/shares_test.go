package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// unfinished is a request whose body isn't whole.
type unfinished struct {
	net.Conn
	rest string
}

// unfinish sends all of a call's body but its last bytes.
func unfinish(t *testing.T, url, path, token, body string) *unfinished {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Protocol-Version: %s\r\nContent-Length: %d\r\n\r\n",
		path, token, harness.Legacy, len(body))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(c, body[:len(body)-10]) }() // as far as it's taken
	return &unfinished{c, body[len(body)-10:]}
}

// answer waits for the request's answer.
func (u *unfinished) answer() (status int, body string) {
	status, _, body = u.whole()
	return status, body
}

// whole is answer, with the header. Many large bodies at once are read by turns, each slowly
// under the race detector: together they take their time on a machine that has more to do.
func (u *unfinished) whole() (status int, header http.Header, body string) {
	_ = u.SetReadDeadline(time.Now().Add(5 * time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(u), nil)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return resp.StatusCode, resp.Header, string(b)
}

// soon tells whether an answer says to come again in a few seconds.
func soon(h http.Header) bool {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	return err == nil && s >= 1 && s <= 10
}

func gauge(t *testing.T, f *harness.Client, name string) int {
	t.Helper()
	_, page := f.REST(f.Admin).Do("GET", "/metrics", "")
	_, after, _ := bytes.Cut(page, []byte("\n"+name+" "))
	word, _, _ := bytes.Cut(after, []byte("\n"))
	v, err := strconv.ParseFloat(string(word), 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return int(v)
}

// TestUnfinishedBodiesOfOneCredential: one credential that sends large bodies and never
// finishes them, over both edges, has its share of memory and no more. Small calls of its own
// and large ones of others go on.
func TestUnfinishedBodiesOfOneCredential(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, _ := f.PAT("breaker", "all", "all", false)
	other, _ := f.PAT("other", "all", "all", false)
	const size = 2 << 20
	file := filepath.Join(t.TempDir(), "written")
	args := fmt.Sprintf(`"path":%q,"content":%q}`, file, strings.Repeat("x", size-4096))
	bodies := map[string]string{
		"/api/v1/calls": `{"agent_id":"web-01","tool":"fs_write","args":{` + args + `}`,
		"/mcp":          toolsCall(harness.Legacy, `"name":"fs_write","arguments":{"agent_id":"web-01",`+args),
	}
	type end struct {
		of     *unfinished
		status int
		header http.Header
		body   string
	}
	const many, fit = 48, 32 // of the size that is said
	ends := make(chan end, many)
	open := map[*unfinished]bool{}
	for range many / len(bodies) {
		for path, body := range bodies {
			u := unfinish(t, f.URL, path, token, body)
			open[u] = true
			go func() {
				status, header, body := u.whole()
				ends <- end{u, status, header, body}
			}()
		}
	}
	harness.Eventually(t, 20*time.Second, "its share is taken", func() bool { return gauge(t, &f.Client, "drover_body_bytes") > (fit-1)*(size-4096) })
	if status, res := f.REST(token).Call("web-01", "shell_exec", map[string]any{"command": "echo fine"}); status != 200 || res.Stdout() != "fine\n" {
		t.Errorf("a small call of its own: HTTP %d %+v", status, res.Error)
	}
	if status, body := f.REST(other).Do("POST", "/api/v1/calls", bodies["/api/v1/calls"]); status != 200 || !strings.Contains(string(body), `"succeeded"`) {
		t.Errorf("a large call of another: HTTP %d %.300s", status, body)
	}
	atMCP := false
	for range many - fit {
		e := <-ends
		if e.status != 429 || !soon(e.header) || !strings.Contains(e.body, `"code":"rate_limited"`) || !strings.Contains(e.body, `"reason":"principal_body_bytes"`) {
			t.Errorf("one without room: HTTP %d %.300s", e.status, e.body)
		}
		atMCP = atMCP || strings.Contains(e.body, `"jsonrpc"`)
		delete(open, e.of)
	}
	if now := gauge(t, &f.Client, "drover_body_bytes"); !atMCP || now > 64<<20 {
		t.Errorf("%d bytes are held; refused at MCP: %v", now, atMCP)
	}
	// Those that had room are served as soon as they're whole.
	for u := range open {
		if _, err := io.WriteString(u, u.rest); err != nil {
			t.Error(err)
		}
	}
	for range open {
		if e := <-ends; e.status != 200 || !strings.Contains(e.body, "succeeded") && !strings.Contains(e.body, `"result"`) {
			t.Errorf("one with room: HTTP %d %.300s", e.status, e.body)
		}
	}
	harness.Eventually(t, 10*time.Second, "all is given back", func() bool { return gauge(t, &f.Client, "drover_body_bytes") == 0 })
}

// TestACredentialThatEndsWithItsBodyUnread: what was revoked while its body arrived starts
// nothing.
func TestACredentialThatEndsWithItsBodyUnread(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	mark := filepath.Join(t.TempDir(), "ran")
	long := strings.Repeat("x", 20<<10)
	for path, body := range map[string]string{
		"/api/v1/calls": fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","args":{"command":"echo x >> %s","stdin":%q}}`, mark, long),
		"/mcp":          toolsCall(harness.Legacy, fmt.Sprintf(`"name":"shell_exec","arguments":{"agent_id":"web-01","command":"echo x >> %s","stdin":%q}`, mark, long)),
	} {
		token, id := f.PAT("short", "all", "all", false)
		u := unfinish(t, f.URL, path, token, body)
		harness.Eventually(t, 10*time.Second, "its body is waited for", func() bool { return gauge(t, &f.Client, "drover_body_bytes") > 0 })
		if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status/100 != 2 {
			t.Fatalf("HTTP %d %s", status, b)
		}
		if _, err := io.WriteString(u, u.rest); err != nil {
			t.Fatal(err)
		}
		if status, answer := u.answer(); status != 401 || !strings.Contains(answer, "while the body arrived") {
			t.Errorf("%s: HTTP %d %s", path, status, answer)
		}
	}
	if ran := read(t, mark); ran != "" {
		t.Errorf("it ran: %q", ran)
	}
}

// TestRequestsThatWaitOfOneCredential: who waits for calls in ever more requests is told so.
// Looking without waiting, cancelling, and the waits of others go on.
func TestRequestsThatWaitOfOneCredential(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, _ := f.PAT("waits", "all", "all", false)
	s := startSleeper(t, f, token, "web-01")
	const most = 1024
	path := "/api/v1/calls/" + s.id
	statuses := make(chan int, most)
	for range most {
		go func() {
			status, _ := f.REST(token).Do("GET", path+"?wait_seconds=300", "")
			statuses <- status
		}()
	}
	harness.Eventually(t, 60*time.Second, "all wait", func() bool { return gauge(t, &f.Client, "drover_waits_open") == most })
	status, header, body := f.REST(token).Whole("GET", path+"?wait_seconds=5", "")
	if status != 429 || !soon(header) || !strings.Contains(string(body), `"reason":"principal_waits"`) {
		t.Errorf("one more: HTTP %d %s", status, body)
	}
	session := f.MCP(token, harness.Modern, nil)
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_result", Arguments: map[string]any{"call_id": s.id, "wait_seconds": 5}})
	if err != nil || !res.IsError || !strings.Contains(fmt.Sprint(res.Content[0].(*mcp.TextContent).Text), "rate_limited (principal_waits)") {
		t.Errorf("one more over MCP: %v %+v", err, res)
	}
	if status, body := f.REST(token).Do("GET", path, ""); status != 202 {
		t.Errorf("a look: HTTP %d %s", status, body)
	}
	started := time.Now()
	if status, body := f.REST(f.Admin).Do("GET", path+"?wait_seconds=1", ""); status != 202 || time.Since(started) < time.Second {
		t.Errorf("another's wait: HTTP %d %s", status, body)
	}
	if status, body := f.REST(token).Do("POST", path+"/cancel", ""); status/100 != 2 {
		t.Errorf("cancel: HTTP %d %s", status, body)
	}
	for range most {
		if status := <-statuses; status != 200 {
			t.Errorf("a wait ended with HTTP %d", status)
		}
	}
	s.ends(t, 20*time.Second)
	harness.Eventually(t, 10*time.Second, "nobody waits", func() bool { return gauge(t, &f.Client, "drover_waits_open") == 0 })
}

// TestStreamsOfOneCredential: streams of news that stand are bounded, and calls go on.
func TestStreamsOfOneCredential(t *testing.T) {
	f := harness.New(t, harness.Options{})
	token, _ := f.PAT("listens", "all", "all", false)
	const most = 64
	for range most {
		subscribe(t, &f.Client, token)
	}
	resp := listening(t, &f.Client, token)
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	var out struct {
		ID    int `json:"id"`
		Error struct {
			Data map[string]string `json:"data"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &out); err != nil || resp.StatusCode != 429 || out.ID != 1 || out.Error.Data["code"] != "rate_limited" || out.Error.Data["reason"] != "principal_streams" || resp.Header.Get("Retry-After") != "" {
		t.Errorf("one more: HTTP %d %v %s", resp.StatusCode, resp.Header, body)
	}
	other, _ := f.PAT("other", "all", "all", false)
	subscribe(t, &f.Client, other)
	if _, err := f.MCP(token, harness.Modern, nil).ListTools(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
