package mcpapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/tests/harness"
)

// modernCall is a tools/call of the modern era in parts. The SDK has it, and not serveCall,
// when its params have a member requestState, even an empty one.
type modernCall struct {
	tag, id, tool, args  string // id and args are JSON
	version, info, caps  string // JSON; "" leaves one out
	meta, params, member string // more members of _meta, of the params and of the message
	header               http.Header
}

func newModernCall() modernCall {
	return modernCall{
		tag: `"2.0"`, id: "7", tool: "fs_stat", args: `{"agent_id":"web-01","path":"/"}`,
		version: `"2026-07-28"`, info: `{"name":"differ","version":"1"}`, caps: `{}`,
		header: http.Header{"Mcp-Method": {"tools/call"}, "Mcp-Name": {"fs_stat"}},
	}
}

func (c modernCall) body() string {
	var meta []string
	for _, m := range [][2]string{{"protocolVersion", c.version}, {"clientInfo", c.info}, {"clientCapabilities", c.caps}} {
		if m[1] != "" {
			meta = append(meta, fmt.Sprintf(`"io.modelcontextprotocol/%s":%s`, m[0], m[1]))
		}
	}
	if c.meta != "" {
		meta = append(meta, c.meta)
	}
	id := ""
	if c.id != "" {
		id = `"id":` + c.id + `,`
	}
	return fmt.Sprintf(`{"jsonrpc":%s,%s"method":"tools/call"%s,"params":{"name":"%s","arguments":%s,"_meta":{%s}%s}}`,
		c.tag, id, c.member, c.tool, c.args, strings.Join(meta, ","), c.params)
}

// message is the answer's JSON-RPC message, from a plain body or an event stream, and
// whether it was plain.
func message(body []byte) (msg []byte, plain bool) {
	if !bytes.HasPrefix(body, []byte("event: ")) {
		return body, true
	}
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			msg = bytes.TrimSpace(data)
		}
	}
	return msg, false
}

// changing is what differs from call to call.
var changing = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}|\d+\.\d\d s|"duration_ms":\d+`)

type change func(*modernCall)

// variant is a call that's out of the ordinary in one thing, or in none.
type variant struct {
	name   string
	change change
	plain  bool // serveCall takes it
}

// envelopes vary the message and the headers.
func envelopes() []variant {
	header := func(name string, values ...string) change {
		return func(c *modernCall) { c.header[name] = values }
	}
	return []variant{
		{"as clients send it", func(*modernCall) {}, true},
		{"a text as id", func(c *modernCall) { c.id = `"a\u00e9\"<b"` }, true},
		{"an empty id", func(c *modernCall) { c.id = `""` }, true},
		{"a long id", func(c *modernCall) { c.id = `"` + strings.Repeat("x", 300) + `"` }, false},
		{"a fraction as id", func(c *modernCall) { c.id = "7.9" }, false},
		{"an exponent in the id", func(c *modernCall) { c.id = "7e1" }, false},
		{"minus nothing as id", func(c *modernCall) { c.id = "-0" }, false},
		{"no id", func(c *modernCall) { c.id = "" }, false},
		{"null as id", func(c *modernCall) { c.id = "null" }, false},
		{"an object as id", func(c *modernCall) { c.id = "{}" }, false},
		{"another JSON-RPC", func(c *modernCall) { c.tag = `"1.0"` }, false},
		{"a result beside it", func(c *modernCall) { c.member = `,"result":{}` }, false},
		{"no version in the body", func(c *modernCall) { c.version = "" }, false},
		{"another version in the body", func(c *modernCall) { c.version = `"2025-11-25"` }, false},
		{"a later version in both", func(c *modernCall) {
			c.version, c.header["Mcp-Protocol-Version"] = `"2027-01-01"`, []string{"2027-01-01"}
		}, false},
		{"a number as version", func(c *modernCall) { c.version = `20260728` }, false},
		{"no version header", header("Mcp-Protocol-Version", ""), false},
		{"an older version header", header("Mcp-Protocol-Version", "2025-11-25"), false},
		{"no method header", header("Mcp-Method"), false},
		{"another method header", header("Mcp-Method", "tools/list"), false},
		{"the method in another case", header("Mcp-Method", "Tools/Call"), false},
		{"no name header", header("Mcp-Name"), false},
		{"another name header", header("Mcp-Name", "fs_read"), false},
		{"JSON alone is accepted", header("Accept", "application/json"), false},
		{"event streams alone are accepted", header("Accept", "text/event-stream"), false},
		{"everything is accepted", header("Accept", "*/*"), true},
		{"accepted with weights", header("Accept", "text/event-stream;q=0.5 , application/json; q=1"), true},
		{"accepted in two headers", header("Accept", "text/event-stream", "application/json"), true},
		{"an event's id", header("Last-Event-Id", "1"), false},
	}
}

// metas vary what a client says of itself and of the call.
func metas() []variant {
	return []variant{
		{"no client", func(c *modernCall) { c.info = "" }, true},
		{"a client in full", func(c *modernCall) {
			c.info = `{"name":"differ","title":"D","description":"d","version":"1","websiteUrl":"https://d.example","icons":[{"src":"data:,x","mimeType":"image/png","sizes":["48x48"],"theme":"light"}],"x":1}`
		}, true},
		{"null as client", func(c *modernCall) { c.info = "null" }, false},
		{"a text as client", func(c *modernCall) { c.info = `"differ"` }, false},
		{"a number as the client's name", func(c *modernCall) { c.info = `{"name":1,"version":"1"}` }, false},
		{"icons that are none", func(c *modernCall) { c.info = `{"name":"differ","version":"1","icons":[1]}` }, false},
		{"no capabilities", func(c *modernCall) { c.caps = "" }, false},
		{"null as capabilities", func(c *modernCall) { c.caps = "null" }, false},
		{"a list as capabilities", func(c *modernCall) { c.caps = "[]" }, false},
		{"a number as roots", func(c *modernCall) { c.caps = `{"roots":1}` }, false},
		{"a text in roots", func(c *modernCall) { c.caps = `{"roots":{"listChanged":"yes"}}` }, false},
		{"a list as elicitation", func(c *modernCall) { c.caps = `{"elicitation":[]}` }, false},
		{"capabilities in full", func(c *modernCall) {
			c.caps = `{"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"elicitation":{"form":{},"url":{}},"experimental":{"x":1},"extensions":{"a/b":{}},"tasks":{"list":{}}}`
		}, true},
		{"a progress token", func(c *modernCall) { c.meta = `"progressToken":"t"` }, true},
		{"a number as progress token", func(c *modernCall) { c.meta = `"progressToken":3` }, true},
		{"null as progress token", func(c *modernCall) { c.meta = `"progressToken":null` }, false},
		{"an object as progress token", func(c *modernCall) { c.meta = `"progressToken":{}` }, false},
		{"a level for logs", func(c *modernCall) { c.meta = `"io.modelcontextprotocol/logLevel":7` }, true},
		{"more in _meta", func(c *modernCall) { c.meta = `"claudecode/other":1,"x":[null]` }, true},
	}
}

// uses vary the tool and its arguments.
func uses(picture string) []variant {
	tool := func(name, args string) change {
		return func(c *modernCall) { c.tool, c.args, c.header["Mcp-Name"] = name, args, []string{name} }
	}
	return []variant{
		{"responses to nothing", func(c *modernCall) { c.params = `,"inputResponses":{}` }, false},
		{"an unknown tool", tool("fs_nothing", `{}`), false},
		{"one of the server's own", tool("select_agent", `{"agent_id":"web-01"}`), true},
		{"another of the server's own", tool("whoami", `null`), true},
		{"a list", tool("list_agents", `{"limit":5}`), true},
		{"a bad argument for one of them", tool("list_agents", `{"limit":"x"}`), true},
		{"a call that isn't there", tool("call_result", `{"call_id":"01929292-0000-7000-8000-000000000001"}`), true},
		{"a file's tool", tool("fs_download", `{"agent_id":"web-01","path":"/"}`), false},
		{"no agent", tool("fs_stat", `{"path":"/"}`), true},
		{"null as arguments", tool("fs_stat", `null`), true},
		{"an unknown agent", tool("fs_stat", `{"agent_id":"web-02","path":"/"}`), true},
		{"a bad argument", tool("fs_stat", `{"agent_id":"web-01","path":7}`), true},
		{"a bad time to queue", tool("fs_stat", `{"agent_id":"web-01","path":"/","queue_for_seconds":0}`), true},
		{"a tool that fails", tool("fs_stat", `{"agent_id":"web-01","path":"/no/such/thing"}`), true},
		{"a command", tool("shell_exec", `{"agent_id":"web-01","command":"printf '<b>&\\303\\251 \\342\\200\\250 \\033 \\377\\r\\n\"'; printf x >&2; exit 3"}`), true},
		{"a picture", tool("fs_read", `{"agent_id":"web-01","path":"`+picture+`"}`), true},
	}
}

// The way of our own for calls gives the SDK's answers: what is in order is answered alike,
// byte for byte but for JSON's freedoms, and what the SDK refuses is refused alike.
func TestServeCallAnswersAsTheSDK(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	picture := filepath.Join(t.TempDir(), "x.png")
	if err := os.WriteFile(picture, []byte("\x89PNG\r\n\x1a\nsome picture"), 0o600); err != nil {
		t.Fatal(err)
	}
	few, _ := f.PAT("few", "all", "fs_list", false)
	for _, c := range slices.Concat(envelopes(), metas(), uses(picture)) {
		t.Run(c.name, func(t *testing.T) {
			one := newModernCall()
			c.change(&one)
			if plain, ok := bothWays(t, f, harness.Modern, one); ok && plain != c.plain || !ok && c.plain {
				t.Errorf("plain %v, taken %v", plain, ok)
			}
			old := olderCall()
			c.change(&old)
			bothWays(t, f, harness.Legacy, old)
		})
	}
	for revision, want := range map[string]bool{"2025-11-25": true, "2025-06-18": true, "2025-03-26": true, "2025-01-01": false, "x": false, "": false} {
		t.Run("older revision "+revision, func(t *testing.T) {
			one := olderCall()
			one.header["Mcp-Protocol-Version"] = []string{revision}
			if plain, _ := bothWays(t, f, harness.Legacy, one); plain != want {
				t.Errorf("plain %v", plain)
			}
		})
	}
	for _, key := range []string{"claudecode/toolUseId", "io.github.drover-fleet/idempotency_key"} {
		t.Run("the same call again by "+key, func(t *testing.T) {
			one := newModernCall()
			one.meta = fmt.Sprintf(`"%s":"again"`, key)
			for i, params := range []string{"", "", `,"requestState":""`} {
				one.params = params
				_, body := f.PostMCP(f.Admin, harness.Modern, one.header, one.body())
				if msg, plain := message(body); bytes.Contains(msg, []byte(`"joined":true`)) != (i > 0) {
					t.Errorf("plain %v, use %d: %s", plain, i, msg)
				}
			}
		})
	}
	t.Run("a tool that isn't granted", func(t *testing.T) {
		one := newModernCall()
		resp, body := f.PostMCP(few, harness.Modern, one.header, one.body())
		if resp.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte(`"code":"unknown_tool"`)) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
}

// olderCall is a call of the older era outside of a session.
func olderCall() modernCall {
	c := newModernCall()
	c.version, c.info, c.caps, c.header = "", "", "", http.Header{}
	return c
}

// bothWays sends a call as it is, and so that the SDK has it, and compares the answers. It
// tells whether serveCall took it, and whether it was taken at all.
func bothWays(t *testing.T, f *harness.Fleet, era harness.Era, c modernCall) (plain, taken bool) {
	t.Helper()
	resp, body := f.PostMCP(f.Admin, era, c.header, c.body())
	got, plain := message(body)
	c.params += `,"requestState":""`
	resp2, body2 := f.PostMCP(f.Admin, era, c.header, c.body())
	want, bySDK := message(body2)
	if bySDK && bytes.Contains(want, []byte(`"result":`)) {
		t.Fatalf("%s: the SDK wasn't asked: %s", era, body2)
	}
	if resp.StatusCode != resp2.StatusCode {
		t.Errorf("%s: status %d, of the SDK %d", era, resp.StatusCode, resp2.StatusCode)
	}
	if diff := cmp.Diff(normal(t, want), normal(t, got)); diff != "" {
		t.Errorf("%s: the SDK's answer, and ours:\n%s", era, diff)
	}
	taken = resp.StatusCode == http.StatusOK
	return plain && taken, taken
}

// normal is a message without what differs from call to call.
func normal(t *testing.T, msg []byte) (out any) {
	t.Helper()
	msg = changing.ReplaceAllFunc(msg, func(b []byte) []byte {
		if b[0] == '"' {
			return []byte(`"duration_ms":0`)
		}
		return nil
	})
	if err := json.Unmarshal(msg, &out); err != nil && len(msg) > 0 {
		t.Fatalf("%v: %s", err, msg)
	}
	return out
}

// A call that takes a while is answered on an event stream that pulses within a second, and
// the answer is its last event. One that asks for progress gets it there.
func TestServeCallStreams(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := connect(t, f, "web-01")
	for _, progress := range []bool{false, true} {
		one := newModernCall()
		one.tool, one.args, one.header["Mcp-Name"] = "shell_exec", `{"agent_id":"web-01","command":"make"}`, []string{"shell_exec"}
		if progress {
			one.meta = `"progressToken":12345`
		}
		lines, header := open(t, f, one)
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		if got := next(t, lines); !progress && got != ": ka" {
			t.Errorf("the first line is %q", got)
		}
		if h := <-header; h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-cache, no-transform" {
			t.Errorf("header: %v", h)
		}
		if progress {
			if err := a.Send(fmt.Sprintf(`{"type":"progress","id":%q,"seq":1,"message":"compiling"}`, req.ID)); err != nil {
				t.Fatal(err)
			}
			want := `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345,"progress":`
			for got := ""; !strings.Contains(got, `web-01 says: \"compiling`); {
				if got = next(t, lines); strings.HasPrefix(got, "data:") && !strings.HasPrefix(got, want) {
					t.Errorf("progress: %q, want %q…", got, want)
				}
			}
		}
		if err := a.Answer(req.ID, processOut); err != nil {
			t.Fatal(err)
		}
		for got := ""; !strings.HasPrefix(got, `data: {"jsonrpc":"2.0","id":7,"result":{"_meta":{`); {
			got = next(t, lines)
		}
		if got := next(t, lines); got != "" {
			t.Errorf("the answer's event doesn't end: %q", got)
		}
		if more, ok := <-lines; ok {
			t.Errorf("after the answer: %q", more)
		}
	}
}

// open sends a call, and gives the header and the lines of its answer as they come.
func open(t *testing.T, f *harness.Fleet, c modernCall) (<-chan string, <-chan http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL+"/mcp", strings.NewReader(c.body()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = c.header.Clone()
	for name, v := range map[string]string{
		"Authorization": "Bearer " + f.Admin, "Content-Type": "application/json",
		"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28",
	} {
		req.Header.Set(name, v)
	}
	lines, header := make(chan string, 64), make(chan http.Header, 1)
	go func() {
		defer close(lines)
		resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
		if err != nil {
			t.Errorf("the call: %v", err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		header <- resp.Header
		r := bufio.NewReader(resp.Body)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				if err != io.EOF {
					t.Errorf("the answer: %v", err)
				}
				return
			}
			lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	return lines, header
}
