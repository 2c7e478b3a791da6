package e2e

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// send makes one request whose headers are given as "Name: value", and returns its status,
// header and body.
func send(t *testing.T, method, url, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	_, _ = b.ReadFrom(resp.Body)
	return resp.StatusCode, resp.Header, b.String()
}

// TestBrowsersStayOut (S-09): what a foreign web page can make a browser send is refused
// before it's read, with a valid credential too.
func TestBrowsersStayOut(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	mark := filepath.Join(t.TempDir(), "ran")
	call := fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","args":{"command":"echo ran >> %s"}}`, mark)
	mcpCall := toolsCall(harness.Legacy, fmt.Sprintf(`"name":"shell_exec","arguments":{"agent_id":"web-01","command":"echo ran >> %s"}`, mark))
	const js, accept = "Content-Type: application/json", "Accept: application/json, text/event-stream"
	bearer := "Authorization: Bearer " + f.Admin
	_, h, _ := send(t, "POST", f.URL+"/api/v1/session", fmt.Sprintf(`{"pat":%q}`, f.Admin), js, "Origin: "+f.URL)
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	if cookie == "" {
		t.Fatal("no session")
	}
	cookie = "Cookie: " + cookie
	upgrade := []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}

	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		want                     string // status codes
	}{
		{"Host evil, list", "GET", "/api/v1/agents", "", []string{bearer, "Host: evil.com"}, "403"},
		{"Host evil with our port", "GET", "/api/v1/agents", "", []string{bearer, "Host: evil.com" + f.URL[strings.LastIndex(f.URL, ":"):]}, "403"},
		{"Host that begins like ours", "GET", "/api/v1/agents", "", []string{bearer, "Host: 127.0.0.1.evil.com"}, "403"},
		{"Host evil, page", "GET", "/", "", []string{"Host: evil.com"}, "403"},
		{"Host evil, call", "POST", "/api/v1/calls", call, []string{bearer, js, "Host: evil.com"}, "403"},
		{"Host evil, MCP", "POST", "/mcp", mcpCall, []string{bearer, js, accept, "Host: evil.com"}, "403"},
		{"foreign Origin, text", "POST", "/api/v1/calls", call, []string{bearer, "Content-Type: text/plain", "Origin: https://evil"}, "403 415"},
		{"text", "POST", "/api/v1/calls", call, []string{bearer, "Content-Type: text/plain"}, "415"},
		{"no type", "POST", "/api/v1/calls", call, []string{bearer}, "415"},
		{"form", "POST", "/api/v1/calls", call, []string{bearer, "Content-Type: application/x-www-form-urlencoded"}, "415"},
		{"MCP, text", "POST", "/mcp", mcpCall, []string{bearer, "Content-Type: text/plain", accept}, "415"},
		{"foreign Origin", "POST", "/api/v1/calls", call, []string{bearer, js, "Origin: https://evil"}, "403"},
		{"foreign Origin, MCP", "POST", "/mcp", mcpCall, []string{bearer, js, accept, "Origin: https://evil"}, "403"},
		{"null Origin", "POST", "/api/v1/calls", call, []string{cookie, js, "Origin: null"}, "403"},
		{"cross-site", "POST", "/api/v1/calls", call, []string{cookie, js, "Sec-Fetch-Site: cross-site"}, "403"},
		{"same-site, another port", "POST", "/api/v1/calls", call, []string{cookie, js, "Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1:1"}, "403"},
		{"the page's cookie at MCP", "POST", "/mcp", mcpCall, []string{cookie, js, accept}, "401"},
		{"cookie from another site, reading", "GET", "/api/v1/agents", "", []string{cookie, "Sec-Fetch-Site: cross-site"}, "401 403"},
		{"WebSocket, foreign Origin", "GET", "/agent/v1/tunnel", "", append([]string{cookie, "Origin: https://evil.com"}, upgrade...), "403"},
		{"WebSocket, null Origin", "GET", "/agent/v1/tunnel", "", append([]string{"Origin: null"}, upgrade...), "403"},
	} {
		status, _, body := send(t, c.method, f.URL+c.path, c.body, c.headers...)
		if !strings.Contains(c.want, fmt.Sprint(status)) {
			t.Errorf("%s: HTTP %d, want %s: %.200s", c.name, status, c.want, body)
		}
		if strings.Contains(body, "web-01") && status/100 != 2 {
			t.Errorf("%s: the refusal names an agent: %s", c.name, body)
		}
	}
	if ran := read(t, mark); ran != "" {
		t.Errorf("a refused request ran: %q", ran)
	}
	// The page itself, and clients that are no browsers, come in.
	for _, headers := range [][]string{{cookie, js, "Origin: " + f.URL, "Sec-Fetch-Site: same-origin"}, {bearer, js}} {
		if status, _, body := send(t, "POST", f.URL+"/api/v1/calls", call, headers...); status != 200 {
			t.Errorf("%q: HTTP %d: %s", headers, status, body)
		}
	}
	if got := strings.Count(read(t, mark), "ran"); got != 2 {
		t.Errorf("%d calls ran, want 2", got)
	}
	// Six by another site's page, four that aren't declared as JSON, one without a credential.
	checkRefusals(t, f, map[string]int{"denied": 6, "bad_args": 4, "unauthenticated": 1})
}

// TestAgentEndpoints (S-10): an agent is who its key says, whatever id it writes, and a
// token is worth one key.
func TestAgentEndpoints(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a, b := f.RawAgent("a-01"), f.RawAgent("b-01")
	if err := b.Connect(); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	copyOf := func(r *harness.RawAgent, change func(*harness.RawAgent)) *harness.RawAgent {
		c := *r
		change(&c)
		return &c
	}
	for name, c := range map[string]*harness.RawAgent{
		"another's id":         copyOf(a, func(c *harness.RawAgent) { c.ID = "b-01" }),
		"a key nobody knows":   copyOf(a, func(c *harness.RawAgent) { c.Key = stranger }),
		"an id nobody has":     copyOf(a, func(c *harness.RawAgent) { c.ID = "nope-01" }),
		"no id":                copyOf(a, func(c *harness.RawAgent) { c.ID = "" }),
		"a generation to come": copyOf(a, func(c *harness.RawAgent) { c.Generation = 2 }),
		"another server's key": copyOf(a, func(c *harness.RawAgent) { c.Server = stranger.Public().(ed25519.PublicKey) }),
	} {
		if err := c.Connect(); err == nil {
			t.Errorf("%s: let in", name)
			c.Close()
		} else if name != "another's id" && strings.Contains(err.Error(), "b-01") {
			t.Errorf("%s: the refusal names another agent: %v", name, err)
		}
	}
	// Who was taken for b isn't: its calls still reach the one with the key.
	answer := inFlight(&f.Client, "b-01")
	if err := b.Answer(request(t, b, answer).ID, okProcess); err != nil {
		t.Fatal(err)
	}
	if res := <-answer; res.State != "succeeded" {
		t.Errorf("b-01: %+v %+v", res, res.Error)
	}

	token := f.EnrolToken("c-01", nil, false)
	if _, err := f.Enrol(token, stranger, "first"); err != nil {
		t.Fatal(err)
	}
	_, other, _ := ed25519.GenerateKey(rand.Reader)
	if _, err := f.Enrol(token, other, "second"); err == nil || !(strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "403") || strings.Contains(err.Error(), "409")) {
		t.Errorf("a token used twice: %v", err)
	}
	// A key on record can't come back under another id.
	if _, err := f.Enrol(f.EnrolToken("d-01", nil, false), stranger, "again"); err == nil {
		if err := (copyOf(a, func(c *harness.RawAgent) { c.ID, c.Key = "d-01", stranger })).Connect(); err != nil {
			t.Logf("one key under two ids: enrolled, then %v", err)
		}
	}
	// Neither a token nor an administrator's PAT opens the tunnel or enrols by itself.
	for _, path := range []string{"/agent/v1/enroll", "/agent/v1/tunnel"} {
		for _, h := range []string{"Authorization: Bearer " + f.Admin, "Authorization: Bearer " + token, "X-Agent-ID: b-01"} {
			if status, _, body := send(t, "POST", f.URL+path, `{}`, h, "Content-Type: application/json"); status/100 == 2 {
				t.Errorf("%s with %.20s…: HTTP %d %s", path, h, status, body)
			}
		}
	}
}

// TestInternalHeadersAreIgnored (G-12): no header says who calls or where it goes.
func TestInternalHeadersAreIgnored(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("secret-01")
	token, id := f.PAT("narrow", "web-01", "shell", false)
	evil := []string{
		"X-Agent-ID: secret-01", "Agent-Id: secret-01", "Mcp-Init-Host: secret-01", "X-Forwarded-User: root", "X-Remote-User: root",
		"X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "X-Drover-Principal: system:root", "X-Drover-Admin: true",
		"X-Original-URL: /api/v1/pats", "X-HTTP-Method-Override: DELETE", "User-Agent: pat:root", "Content-Type: application/json",
	}
	with := append([]string{"Authorization: Bearer " + token}, evil...)
	_, _, body := send(t, "POST", f.URL+"/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"echo $DROVER_AGENT_ID $DROVER_CALLER"}}`, with...)
	var res harness.CallResult
	if err := json.Unmarshal([]byte(body), &res); err != nil || res.Stdout() != "web-01 pat:"+id+":narrow\n" {
		t.Errorf("the host was told %q (%s)", res.Stdout(), body)
	}
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/calls", `{"agent_id":"secret-01","tool":"shell_exec","args":{"command":"true"}}`, "404"},
		{"POST", "/api/v1/calls", `{"tool":"shell_exec","args":{"command":"true"}}`, "400"},
		{"GET", "/api/v1/agents/secret-01", "", "404"},
		{"GET", "/api/v1/pats", "", "403"},
		{"DELETE", "/api/v1/agents/web-01", "", "403"},
	} {
		if status, _, body := send(t, c.method, f.URL+c.path, c.body, with...); fmt.Sprint(status) != c.want {
			t.Errorf("%s %s: HTTP %d, want %s: %s", c.method, c.path, status, c.want, body)
		}
	}
	if status, _, _ := send(t, "GET", f.URL+"/api/v1/agents", "", evil...); status != 401 {
		t.Errorf("without a credential: HTTP %d", status)
	}
	if status, _, body := send(t, "GET", f.URL+"/api/v1/calls/"+res.CallID, "", with...); status != 200 {
		t.Errorf("its own call: HTTP %d %s", status, body)
	}
	other, _ := f.PAT("other", "web-01", "shell", false)
	if status, _, _ := send(t, "GET", f.URL+"/api/v1/calls/"+res.CallID, "", "Authorization: Bearer "+other); status != 404 {
		t.Errorf("another's call: HTTP %d", status)
	}
}

// TestLogsStayWhole (S-16): whatever clients and hosts call themselves, each record of the
// log is one line of JSON, and no more than that.
func TestLogsStayWhole(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Flags: []string{"--log-level", "debug"}})
	const forged = "x\n{\"level\":\"info\",\"msg\":\"approved\"}\r\x1b[2J\u2028\u202e"
	a := d.RawAgent("log-01")
	a.Facts = protocol.Facts{Hostname: forged, OS: forged, OSVersion: forged, Arch: forged, RunAs: forged, AgentVersion: forged}
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	frame, err := json.Marshal(map[string]string{"type": "log", "level": "info", "message": forged + "log-mark"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(string(frame)); err != nil {
		t.Fatal(err)
	}
	quoted, _ := json.Marshal(forged)
	send(t, "POST", d.URL+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":`+string(quoted)+`,"version":`+string(quoted)+`}}}`,
		"Authorization: Bearer "+d.Admin, "Content-Type: application/json", "Accept: application/json, text/event-stream", "User-Agent: ua {\"msg\":\"approved\"} \u202e\u2028\u0085"+strings.Repeat("A", 20_000))
	send(t, "GET", d.URL+"/api/v1/agents/x%0a%7b%22msg%22:%22approved%22%7d%1b%5b2J", "", "Authorization: Bearer "+d.Admin, "X-Request-Id: y\u202e\u2028\"}")
	name, _ := json.Marshal("shell_exec" + forged)
	d.REST(d.Admin).Do("POST", "/api/v1/calls", `{"agent_id":`+string(quoted)+`,"tool":`+string(name)+`,"args":{}}`)
	harness.Eventually(t, 20*time.Second, "the agent's own line is logged", func() bool { return bytes.Contains(d.Server.Log(), []byte("log-mark")) })

	lines := bufio.NewScanner(bytes.NewReader(d.Server.Log()))
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		n++
		var rec map[string]any
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			t.Errorf("line %d is no record: %v: %q", n, err, lines.Text())
			continue
		}
		if rec["msg"] == "approved" {
			t.Errorf("a forged record: %s", lines.Text())
		}
		if strings.ContainsAny(lines.Text(), "\x1b\r\u2028\u202e") {
			t.Errorf("line %d holds control characters: %q", n, lines.Text())
		}
		if len(lines.Text()) > 16<<10 {
			t.Errorf("line %d has %d bytes", n, len(lines.Text()))
		}
	}
	if n < 5 {
		t.Errorf("only %d lines", n)
	}
	// What a terminal shows is clean too.
	for _, args := range [][]string{{"agents", "list"}, {"agents", "show", "log-01"}, {"audit", "list"}} {
		if out := d.Run(args...); strings.ContainsAny(out, "\x1b\r\u2028\u202e") {
			t.Errorf("drover %s shows %q", strings.Join(args, " "), out)
		}
	}
}
