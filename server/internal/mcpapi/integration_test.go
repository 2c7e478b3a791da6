package mcpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

func call(t *testing.T, s *mcp.ClientSession, tool string, args any) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return r
}

func text(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	if len(r.Content) == 0 {
		t.Fatal("no content")
	}
	c, ok := r.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content is %T", r.Content[0])
	}
	return c.Text
}

// decode reads structured content, which must equal its copy as text.
func decode(t *testing.T, r *mcp.CallToolResult, out any) {
	t.Helper()
	if r.IsError {
		t.Fatalf("an error: %s", text(t, r))
	}
	if err := json.Unmarshal([]byte(text(t, r)), out); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	if !sameJSON(t, b, []byte(text(t, r))) {
		t.Errorf("structured %s, text %s", b, text(t, r))
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	ja, _ := json.Marshal(x)
	jb, _ := json.Marshal(y)
	return string(ja) == string(jb)
}

func connect(t *testing.T, f *harness.Fleet, id string) *harness.RawAgent {
	t.Helper()
	a := f.RawAgent(id)
	if err := a.Connect(); err != nil {
		t.Fatalf("agent %s: %v", id, err)
	}
	t.Cleanup(a.Close)
	online(t, f, id)
	return a
}

func online(t *testing.T, f *harness.Fleet, id string) {
	t.Helper()
	harness.Eventually(t, 10*time.Second, id+" is online", func() bool {
		var got struct {
			State string `json:"state"`
		}
		return f.REST(f.Admin).JSON("GET", "/api/v1/agents/"+id, nil, &got) == 200 && got.State == "online"
	})
}

const processOut = `{"exit_code":0,"stdout":"hi\n","stderr":"","stdout_bytes":3,"stderr_bytes":0,"duration_ms":5}`

// Every own tool answers what its schema says, also where there's nothing to tell.
func TestOwnToolsInBothEras(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for _, era := range harness.Eras() {
		t.Run(string(era), func(t *testing.T) {
			s := f.MCP(f.Admin, era, nil)
			list, err := s.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			schemas := map[string]any{}
			var names []string
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
				schemas[tool.Name] = tool.OutputSchema
			}
			if !slices.IsSorted(names) || len(names) < 13 {
				t.Errorf("tools: %v", names)
			}
			for _, tool := range []string{"list_agents", "fleet_overview", "whoami"} {
				r := call(t, s, tool, map[string]any{})
				var m map[string]any
				decode(t, r, &m)
				fits(t, tool, schemas[tool], m)
				if strings.Contains(text(t, r), ":null") {
					t.Errorf("%s has null: %s", tool, text(t, r))
				}
			}
			var agents struct{ Agents []any }
			decode(t, call(t, s, "list_agents", nil), &agents)
			if agents.Agents == nil || len(agents.Agents) != 0 {
				t.Errorf("an empty fleet: %+v", agents)
			}
			for tool, args := range map[string]string{
				"select_agent": `{"agent_id":"none"}`, "call_result": `{"call_id":"x"}`,
				"call_cancel": `{"call_id":"01929292-0000-7000-8000-000000000001"}`, "list_agents": `{"Limit":1}`, "whoami": `{"x":1}`,
			} {
				if r := call(t, s, tool, json.RawMessage(args)); !r.IsError || r.StructuredContent != nil || text(t, r) == "" {
					t.Errorf("%s %s: %+v", tool, args, r)
				}
			}
		})
	}
}

func fits(t *testing.T, tool string, schema, v any) {
	t.Helper()
	b, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	if err := r.Validate(v); err != nil {
		t.Errorf("%s: %v", tool, err)
	}
}

// A call in both eras: what the agent gets, and what its answer looks like.
func TestForwardedCall(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := connect(t, f, "web-01")
	go func() {
		for {
			req, err := a.Request()
			if err != nil {
				return
			}
			if string(req.Args) != `{"command":"echo hi","env":{"agent_id":"other"}}` || req.Caller.Client != "harness/1" {
				t.Errorf("the agent got %s from %+v", req.Args, req.Caller)
			}
			if a.Answer(req.ID, processOut) != nil {
				return
			}
		}
	}()
	for _, era := range harness.Eras() {
		s := f.MCP(f.Admin, era, nil)
		r := call(t, s, "shell_exec", json.RawMessage(`{"command":"echo hi","agent_id":"web-01","env":{"agent_id":"other"}}`))
		got := text(t, r)
		meta, _ := r.Meta["io.github.drover-fleet/call"].(map[string]any)
		if r.IsError || !strings.HasPrefix(got, "[web-01 · root · exit 0 · ") || !strings.HasSuffix(got, "]\nhi\n") || meta["agent_id"] != "web-01" || meta["exit_code"] != 0.0 {
			t.Errorf("%s: %q, meta %v", era, got, meta)
		}
		again := call(t, s, "call_result", map[string]any{"call_id": meta["call_id"]})
		if !strings.HasSuffix(text(t, again), "]\nhi\n") || again.IsError {
			t.Errorf("%s: call_result: %q", era, text(t, again))
		}
		var ended struct{ State, AgentID string }
		decode(t, call(t, s, "call_cancel", map[string]any{"call_id": meta["call_id"]}), &ended)
		if ended.State != "succeeded" {
			t.Errorf("%s: call_cancel of an ended call: %+v", era, ended)
		}
		var sel struct {
			State string
			Tools []string
			Note  string
		}
		decode(t, call(t, s, "select_agent", map[string]any{"agent_id": "web-01"}), &sel)
		if sel.State != "online" || !slices.Contains(sel.Tools, "fs_read") || !strings.HasPrefix(sel.Note, "Nothing was selected") {
			t.Errorf("%s: select_agent: %+v", era, sel)
		}
		if r := call(t, s, "shell_exec", map[string]any{"command": "echo hi"}); !r.IsError || !strings.HasPrefix(text(t, r), "no_agent: ") {
			t.Errorf("%s: a call after select_agent without agent_id: %q", era, text(t, r))
		}
	}
}

// A tool that isn't granted reads like one that doesn't exist, and both are recorded.
func TestUnknownTool(t *testing.T) {
	f := harness.New(t, harness.Options{})
	token, _ := f.PAT("files", "all", "fs", false)
	for _, era := range harness.Eras() {
		s := f.MCP(token, era, nil)
		list, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			if strings.HasSuffix(tool.Name, "_exec") {
				t.Errorf("%s is listed", tool.Name)
			}
		}
		before := len(f.AllRecords())
		var said []string
		for _, tool := range []string{"shell_exec", "no_such_tool"} {
			_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"agent_id": "x"}})
			var e *jsonrpc.Error
			if !asRPC(err, &e) || e.Code != jsonrpc.CodeInvalidParams || string(e.Data) != `{"code":"unknown_tool"}` {
				t.Fatalf("%s: %v", tool, err)
			}
			said = append(said, e.Message)
		}
		if said[0] != said[1] {
			t.Errorf("they can be told apart: %q", said)
		}
		harness.Eventually(t, 5*time.Second, "the refusals are recorded", func() bool { return len(f.AllRecords()) > before })
	}
}

func asRPC(err error, out **jsonrpc.Error) bool {
	for err != nil {
		if e, ok := err.(*jsonrpc.Error); ok {
			*out = e
			return true
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			if many, ok := err.(interface{ Unwrap() []error }); ok {
				for _, e := range many.Unwrap() {
					if asRPC(e, out) {
						return true
					}
				}
			}
			return false
		}
		err = u.Unwrap()
	}
	return false
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

func session(t *testing.T, f *harness.Fleet, token string, h http.Header) string {
	t.Helper()
	resp, body := f.PostMCP(token, harness.Legacy, h, initialize)
	id := resp.Header.Get("Mcp-Session-Id")
	if resp.StatusCode != 200 || id == "" {
		t.Fatalf("initialize: %d %s", resp.StatusCode, body)
	}
	return id
}

// Sessions that aren't there: 404 with a JSON-RPC error; a new initialize begins again
// whatever its header says; hosted Claude and clients without sessions are served.
func TestSessions(t *testing.T) {
	f := harness.New(t, harness.Options{})
	other, _ := f.PAT("other", "all", "all", false)
	id := session(t, f, f.Admin, nil)
	const ping = `{"jsonrpc":"2.0","id":9,"method":"ping"}`
	for name, c := range map[string]struct {
		token, session string
	}{"unknown": {f.Admin, "stale"}, "another principal's": {other, id}} {
		resp, body := f.PostMCP(c.token, harness.Legacy, http.Header{"Mcp-Session-Id": {c.session}}, ping)
		var e struct {
			ID    int
			Error struct {
				Code int
				Data struct{ Code string }
			}
		}
		if err := json.Unmarshal(body, &e); err != nil || resp.StatusCode != 404 || e.ID != 9 || e.Error.Data.Code != "not_found" {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	if next := session(t, f, f.Admin, http.Header{"Mcp-Session-Id": {"stale"}}); next == id || next == "stale" {
		t.Errorf("initialize with a stale session gave %s", next)
	}
	resp, body := f.PostMCP(f.Admin, harness.Legacy, http.Header{"User-Agent": {"Claude-User/1"}}, initialize)
	if resp.StatusCode != 200 || resp.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("hosted Claude: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	resp, body = f.PostMCP(f.Admin, harness.Legacy, nil, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"whoami"}}`)
	if resp.StatusCode != 200 || !strings.Contains(string(body), "server_version") {
		t.Errorf("without a session: %d %s", resp.StatusCode, body)
	}
}

// A credential keeps a bounded number of sessions: the one unused the longest ends for a new
// one, and nobody else's.
func TestSessionsOfOneCredentialAreBounded(t *testing.T) {
	f := harness.New(t, harness.Options{})
	loud, _ := f.PAT("loud", "all", "all", false)
	others, used := session(t, f, f.Admin, nil), session(t, f, loud, nil)
	const ping = `{"jsonrpc":"2.0","id":9,"method":"ping"}`
	alive := func(token, id string) bool {
		resp, _ := f.PostMCP(token, harness.Legacy, http.Header{"Mcp-Session-Id": {id}}, ping)
		return resp.StatusCode == http.StatusOK
	}
	const most, all = 64, 200
	var ids []string
	for i := range all {
		ids = append(ids, session(t, f, loud, nil))
		if i%10 == 0 && !alive(loud, used) {
			t.Fatalf("after %d more sessions the one in use is gone", i)
		}
	}
	// Closing isn't waited for.
	harness.Eventually(t, 10*time.Second, "the oldest sessions end", func() bool {
		n := 0
		for _, id := range ids[:all-most+1] {
			if alive(loud, id) {
				n++
			}
		}
		return n == 0
	})
	for i, id := range ids[all-most+1:] {
		if !alive(loud, id) {
			t.Errorf("of the newest %d sessions number %d is gone", most-1, i)
		}
	}
	if !alive(f.Admin, others) || !alive(loud, used) {
		t.Error("another credential's session, or the one in use, is gone")
	}
}

func TestFrontDoor(t *testing.T) {
	f := harness.New(t, harness.Options{})
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, c := range []struct {
		name   string
		token  string
		header http.Header
		body   string
		status int
		code   string
	}{
		{"no such token", "drv_pat_nothing", nil, list, 401, "unauthenticated"},
		{"a foreign page", f.Admin, http.Header{"Origin": {"https://evil.example"}, "Sec-Fetch-Site": {"cross-site"}}, list, 403, "denied"},
		{"a form", f.Admin, http.Header{"Content-Type": {"text/plain"}}, list, 415, "bad_args"},
		{"too large", f.Admin, nil, `{"x":"` + strings.Repeat("x", 5<<20) + `"}`, 413, "too_large"},
		{"GET's Accept", f.Admin, http.Header{"Accept": {"text/html"}}, list, 400, "bad_args"},
		{"two agents", f.Admin, nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fs_stat","arguments":{"agent_id":"a","agent_id":"b","path":"/"}}}`, 400, "bad_args"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := f.PostMCP(c.token, harness.Legacy, c.header, c.body)
			if resp.StatusCode != c.status || !strings.Contains(string(body), `"code":"`+c.code+`"`) {
				t.Errorf("%d %.300s", resp.StatusCode, body)
			}
			if c.status == 401 && !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
				t.Errorf("WWW-Authenticate: %q", resp.Header.Get("WWW-Authenticate"))
			}
		})
	}
	req, err := http.NewRequest("POST", f.URL+"/mcp", strings.NewReader(list))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "evil.example.com"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 403 || !strings.Contains(string(body), "--public-url") {
		t.Errorf("a foreign Host: %d %s", resp.StatusCode, body)
	}
}

// get opens a session's GET stream and returns its lines.
func get(t *testing.T, f *harness.Fleet, token, id string) (lines <-chan string, status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", f.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + token, "Accept": "text/event-stream", "Mcp-Session-Id": id, "Mcp-Protocol-Version": "2025-11-25"} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode == 200 && resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers: %v", resp.Header)
	}
	ch := make(chan string, 64)
	go func() {
		defer close(ch)
		for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
			ch <- sc.Text()
		}
	}()
	return ch, resp.StatusCode
}

// A GET stream has a byte at once; a new one replaces the old; the list's changes come on
// it; revoking ends it.
func TestGETStream(t *testing.T) {
	f := harness.New(t, harness.Options{})
	id := session(t, f, f.Admin, nil)
	resp, body := f.PostMCP(f.Admin, harness.Legacy, http.Header{"Mcp-Session-Id": {id}}, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if resp.StatusCode != 202 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	var before <-chan string
	for i := range 4 {
		lines, status := get(t, f, f.Admin, id)
		if status != 200 {
			t.Fatalf("GET %d: status %d", i, status)
		}
		if first := next(t, lines); first != "retry: 2000" {
			t.Errorf("the first line: %q", first)
		}
		if before != nil {
			drain(t, before)
		}
		before = lines
	}
	// Before an agent has said what it offers, all granted tools are listed; this system has
	// no PowerShell.
	f.Agent("web-01")
	for {
		if line := next(t, before); strings.Contains(line, "notifications/tools/list_changed") {
			break
		}
	}
}

const listen = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

// A client that opens the stream of its session anew replaces the old one, also when as many
// stand as may: one more of another kind is refused.
func TestAStreamIsReplacedWhereNoMoreMayStand(t *testing.T) {
	f := harness.New(t, harness.Options{})
	token, _ := f.PAT("streams", "all", "all", false)
	const most = 64
	ids := make([]string, most)
	streams := make([]<-chan string, most)
	for i := range ids {
		ids[i] = session(t, f, token, nil)
		lines, status := get(t, f, token, ids[i])
		if status != 200 {
			t.Fatalf("stream %d: status %d", i, status)
		}
		streams[i] = lines
	}
	for _, i := range []int{0, most / 2, most - 1, most - 1} {
		lines, status := get(t, f, token, ids[i])
		if status != 200 {
			t.Fatalf("stream %d again: status %d", i, status)
		}
		drain(t, streams[i])
		streams[i] = lines
	}
	if resp, body := f.PostMCP(token, harness.Modern, http.Header{"Mcp-Method": {"subscriptions/listen"}}, listen); resp.StatusCode != 429 {
		t.Errorf("one more: %d %s", resp.StatusCode, body)
	}
	if first := next(t, streams[1]); first != "retry: 2000" {
		t.Errorf("another stream was ended: %q", first)
	}
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case l, ok := <-lines:
		if !ok {
			t.Fatal("the stream ended")
		}
		return l
	case <-time.After(10 * time.Second):
		t.Fatal("nothing on the stream")
	}
	return ""
}

func drain(t *testing.T, lines <-chan string) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case _, ok := <-lines:
			if !ok {
				return
			}
		case <-limit:
			t.Fatal("the stream goes on")
		}
	}
}

// Revoking a token ends its streams and its sessions.
func TestRevokeEndsStreams(t *testing.T) {
	f := harness.New(t, harness.Options{})
	token, pat := f.PAT("soon gone", "all", "all", false)
	id := session(t, f, token, nil)
	lines, status := get(t, f, token, id)
	if status != 200 {
		t.Fatalf("GET: %d", status)
	}
	next(t, lines)
	if status := f.REST(f.Admin).JSON("DELETE", "/api/v1/pats/"+pat, nil, nil); status/100 != 2 {
		t.Fatalf("revoke: %d", status)
	}
	drain(t, lines)
}

// What cancels a call: in the modern era the closed request, in the older one the
// client's notification; there, a lost connection leaves it running.
func TestCancelInBothEras(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := connect(t, f, "web-01")
	args := map[string]any{"agent_id": "web-01", "command": "sleep 100"}
	for _, era := range harness.Eras() { // the SDK's client cancels as its era does
		s := f.MCP(f.Admin, era, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "shell_exec", Arguments: args})
			if err == nil || ctx.Err() == nil {
				t.Errorf("%s: the call ended before its cancel: %+v, %v", era, r, err)
			}
			done <- err
		}()
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		v, err := a.Next(protocol.TypeCancel)
		if err != nil || v.(*protocol.Cancel).ID != req.ID {
			t.Fatalf("%s: %v %v", era, v, err)
		}
		<-done
		if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"cancelled","message":"ended"},"took_us":1}`, req.ID)); err != nil {
			t.Fatal(err)
		}
	}

	for _, id := range []string{session(t, f, f.Admin, nil), ""} { // in a session, and without
		detached(t, f, a, id)
	}
}

// detached cuts the connection of an older client in the middle of its call, then one of a
// modern client: the agent hears of the second alone.
func detached(t *testing.T, f *harness.Fleet, a *harness.RawAgent, id string) {
	t.Helper()
	begin := func(body string, header http.Header) (cut func()) {
		ctx, cut := context.WithCancel(t.Context())
		hr, err := http.NewRequestWithContext(ctx, "POST", f.URL+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		hr.Header = header
		for k, v := range map[string]string{"Authorization": "Bearer " + f.Admin, "Accept": "application/json, text/event-stream", "Content-Type": "application/json"} {
			hr.Header.Set(k, v)
		}
		go func() {
			if resp, err := http.DefaultClient.Do(hr); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}()
		return cut
	}
	modern := newModernCall()
	modern.tool, modern.args = "shell_exec", `{"agent_id":"web-01","command":"sleep 100"}`
	older := modern
	older.version, older.info, older.caps = "", "", ""
	cut := begin(older.body(), http.Header{"Mcp-Protocol-Version": {"2025-11-25"}, "Mcp-Session-Id": {id}})
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	first, second := req.ID, ""
	cut()
	cut = begin(modern.body(), http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"shell_exec"}})
	for cancelled := ""; cancelled == ""; {
		v, err := a.Next("")
		if err != nil {
			t.Fatal(err)
		}
		switch v := v.(type) {
		case *protocol.Request:
			second = v.ID
			cut()
		case *protocol.Cancel:
			if cancelled = v.ID; cancelled != second {
				t.Fatalf("session %q: the older client's call was cancelled", id)
			}
		}
	}
	if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"cancelled","message":"ended"},"took_us":1}`, second)); err != nil {
		t.Fatal(err)
	}
	if err := a.Answer(first, processOut); err != nil {
		t.Fatal(err)
	}
	s := f.MCP(f.Admin, harness.Modern, nil)
	harness.Eventually(t, 10*time.Second, "the detached call's result is there", func() bool {
		r := call(t, s, "call_result", map[string]any{"call_id": first})
		return !r.IsError && strings.HasSuffix(text(t, r), "]\nhi\n")
	})
}

// Progress comes for calls that take a while; the first names the call.
func TestProgress(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := connect(t, f, "web-01")
	for _, era := range harness.Eras() {
		notes := make(chan *mcp.ProgressNotificationParams, 16)
		s := f.MCP(f.Admin, era, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			notes <- r.Params
		}})
		done := make(chan *mcp.CallToolResult, 1)
		go func() {
			p := &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"agent_id": "web-01", "command": "make"}}
			p.SetProgressToken("tok")
			r, err := s.CallTool(t.Context(), p)
			if err != nil || r.IsError {
				t.Errorf("%s: %+v, %v", era, r, err)
			}
			done <- r
		}()
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		if !req.Progress {
			t.Errorf("%s: no progress is asked of the agent", era)
		}
		if err := a.Send(fmt.Sprintf(`{"type":"progress","id":%q,"seq":1,"message":"compiling\u001b[0m"}`, req.ID)); err != nil {
			t.Fatal(err)
		}
		n := <-notes
		if n.ProgressToken != "tok" || !strings.Contains(n.Message, req.ID) || !strings.Contains(n.Message, `web-01 says: "compiling`) || strings.Contains(n.Message, "\x1b") {
			t.Errorf("%s: %+v", era, n)
		}
		if err := a.Answer(req.ID, processOut); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

// 200 agents are listed in less than 40 KB, in order; pages and filters hold.
func TestListAgents(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for i := range 205 {
		f.RawAgent(fmt.Sprintf("host-%03d", i))
	}
	type page struct {
		Agents []struct {
			AgentID string `json:"agent_id"`
			State   string
		}
		Total int
		Next  string `json:"next_cursor"`
	}
	s := f.MCP(f.Admin, harness.Modern, nil)
	var p page
	r := call(t, s, "list_agents", map[string]any{"limit": 200})
	decode(t, r, &p)
	if len(p.Agents) != 200 || p.Total != 205 || p.Next != "host-199" || len(text(t, r)) >= 40_000 {
		t.Errorf("%d agents of %d, next %q, %d bytes", len(p.Agents), p.Total, p.Next, len(text(t, r)))
	}
	for i, a := range p.Agents {
		if a.AgentID != fmt.Sprintf("host-%03d", i) {
			t.Fatalf("agent %d is %s", i, a.AgentID)
		}
	}
	p = page{}
	decode(t, call(t, s, "list_agents", map[string]any{"limit": 200, "cursor": "host-199"}), &p)
	if len(p.Agents) != 5 || p.Total != 205 || p.Next != "" {
		t.Errorf("the last page: %+v", p)
	}
	p = page{}
	decode(t, call(t, s, "list_agents", map[string]any{"query": "HOST-20", "state": "offline"}), &p)
	if p.Total != 5 {
		t.Errorf("the query: %+v", p)
	}
	p = page{}
	decode(t, call(t, s, "list_agents", map[string]any{"labels": map[string]string{"env": "prod"}}), &p)
	if p.Total != 0 || p.Agents == nil {
		t.Errorf("a label that no agent has: %+v", p)
	}
	scoped, _ := f.PAT("two", "host-007,host-100", "all", false)
	p = page{}
	decode(t, call(t, f.MCP(scoped, harness.Legacy, nil), "list_agents", nil), &p)
	if p.Total != 2 {
		t.Errorf("a scope of two: %+v", p)
	}
}

// A call that may wait for its host: queued and told so at once, found and taken back by its
// id, and run once, without Drover's own member, when the host connects.
func TestQueuedCall(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := connect(t, f, "web-01")
	for _, era := range harness.Eras() {
		a.Close()
		f.WaitState("web-01", "offline")
		s := f.MCP(f.Admin, era, nil)
		args := func(queue string) json.RawMessage {
			return json.RawMessage(`{"queue_for_seconds":` + queue + `,"command":"echo ` + string(era) + `","agent_id":"web-01"}`)
		}
		for _, bad := range []string{`0`, `604801`, `1.5`, `"60"`, `null`, `true`} {
			if r := call(t, s, "shell_exec", args(bad)); !r.IsError || !strings.HasPrefix(text(t, r), "bad_args: queue_for_seconds") {
				t.Errorf("%s, queue_for_seconds %s: %s", era, bad, text(t, r))
			}
		}
		if r := call(t, s, "shell_exec", json.RawMessage(`{"command":"x","agent_id":"web-01"}`)); !r.IsError || !strings.HasPrefix(text(t, r), "offline: ") {
			t.Errorf("%s, not to be queued: %s", era, text(t, r))
		}
		back, stays := queued(t, s, args("3600")), queued(t, s, args("3600"))
		var ended struct{ State, Note string }
		decode(t, call(t, s, "call_cancel", map[string]any{"call_id": back}), &ended)
		if ended.State != "cancelled" || !strings.Contains(ended.Note, "nothing ran") {
			t.Errorf("%s, taken back: %+v", era, ended)
		}
		if err := a.Connect(); err != nil {
			t.Fatal(err)
		}
		req, err := a.Request()
		if err != nil || req.ID != stays || string(req.Args) != `{"command":"echo `+string(era)+`"}` {
			t.Fatalf("%s: the agent got %+v, %v", era, req, err)
		}
		if err := a.Answer(req.ID, processOut); err != nil {
			t.Fatal(err)
		}
		if r := call(t, s, "call_result", map[string]any{"call_id": stays}); r.IsError || !strings.HasSuffix(text(t, r), "]\nhi\n") {
			t.Errorf("%s, after the host came: %s", era, text(t, r))
		}
		done := make(chan string, 1)
		go func() {
			done <- text(t, call(t, s, "shell_exec", json.RawMessage(`{"command":"next","agent_id":"web-01"}`)))
		}()
		if req, err = a.Request(); err != nil || string(req.Args) != `{"command":"next"}` {
			t.Fatalf("%s: after the queue the agent got %+v, %v", era, req, err)
		}
		if err := a.Answer(req.ID, processOut); err != nil {
			t.Fatal(err)
		}
		<-done
	}
}

// queued makes a call that must be queued, and returns its id.
func queued(t *testing.T, s *mcp.ClientSession, args json.RawMessage) string {
	t.Helper()
	r := call(t, s, "shell_exec", args)
	meta, _ := r.Meta["io.github.drover-fleet/call"].(map[string]any)
	id, _ := meta["call_id"].(string)
	if r.IsError || !strings.HasPrefix(text(t, r), "queued: shell_exec for agent web-01, as call "+id) || meta["state"] != "queued" || meta["queued_until"] == nil || id == "" {
		t.Fatalf("%s, meta %v", text(t, r), meta)
	}
	look := call(t, s, "call_result", map[string]any{"call_id": id, "wait_seconds": 0})
	if look.IsError || !strings.HasPrefix(text(t, look), "queued: ") {
		t.Errorf("call_result: %s", text(t, look))
	}
	return id
}
