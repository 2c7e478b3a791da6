package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// door is one way in: it makes a call from the raw JSON of its parts and tells the code
// it was answered with ("" for a call that ran) and the text of the error.
type door struct {
	name string
	// knock sends arguments that are members of an object without braces, agent_id among
	// them.
	knock func(tool, members string) (code, text string)
	// raw sends a whole body.
	raw func(body string) (code, text string)
}

func doors(f *harness.Fleet, token string) []door {
	var out []door
	for _, era := range harness.Eras() {
		raw := func(body string) (string, string) { return knockMCP(f, token, era, body) }
		out = append(out, door{"mcp " + string(era), func(tool, members string) (string, string) {
			return raw(toolsCall(era, fmt.Sprintf(`"name":%q,"arguments":{%s}`, tool, members)))
		}, raw})
	}
	out = append(out, door{"rest", func(tool, members string) (string, string) {
		agent, args := splitAgent(members)
		body := fmt.Sprintf(`{"tool":%q,"args":{%s}`, tool, args)
		if agent != "" {
			body += "," + agent
		}
		return knockREST(f, token, body+"}")
	}, func(body string) (string, string) { return knockREST(f, token, body) }})
	return out
}

// toolsCall is a tools/call of this era with these members of params.
func toolsCall(era harness.Era, params string) string {
	if era == harness.Modern {
		params += `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + params + `}}`
}

// splitAgent parts the members that begin with agent_id or its like from the rest: over
// REST they stand beside the arguments.
func splitAgent(members string) (agent, args string) {
	var a, b []string
	for _, m := range splitMembers(members) {
		if strings.Contains(strings.ToLower(strings.SplitN(m, ":", 2)[0]), "agent_id") {
			a = append(a, m)
		} else {
			b = append(b, m)
		}
	}
	return strings.Join(a, ","), strings.Join(b, ",")
}

// splitMembers cuts at commas outside of strings, arrays and objects.
func splitMembers(s string) []string {
	var out []string
	depth, start, quoted := 0, 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 0:
			out, start = append(out, s[start:i]), i+1
		}
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

func knockMCP(f *harness.Fleet, token string, era harness.Era, body string) (string, string) {
	h := http.Header{}
	if era == harness.Modern {
		h.Set("Mcp-Method", "tools/call")
		_, name, _ := strings.Cut(body, `"name":"`)
		name, _, _ = strings.Cut(name, `"`)
		h.Set("Mcp-Name", name)
	}
	resp, b := f.PostMCP(token, era, h, body)
	var msg struct {
		Result *struct {
			IsError bool                      `json:"isError"`
			Content []struct{ Text string }   `json:"content"`
			Meta    map[string]map[string]any `json:"_meta"`
		} `json:"result"`
		Error *struct {
			Message string `json:"message"`
			Data    struct {
				Code string `json:"code"`
			} `json:"data"`
		} `json:"error"`
	}
	if err := json.Unmarshal(eventData(b), &msg); err != nil {
		return fmt.Sprintf("HTTP %d", resp.StatusCode), string(b)
	}
	switch {
	case msg.Error != nil:
		return msg.Error.Data.Code, msg.Error.Message
	case msg.Result != nil && msg.Result.IsError:
		code, _ := msg.Result.Meta["io.github.drover-fleet/call"]["code"].(string)
		return code, msg.Result.Content[0].Text
	case msg.Result != nil:
		return "", msg.Result.Content[0].Text
	}
	return fmt.Sprintf("HTTP %d", resp.StatusCode), string(b)
}

// eventData takes the last message out of an event stream, or the body as it is.
func eventData(b []byte) []byte {
	var last string
	for line := range strings.SplitSeq(string(b), "\n") {
		if d, ok := strings.CutPrefix(line, "data: "); ok && strings.HasPrefix(d, "{") {
			last = d
		}
	}
	if last == "" {
		return b
	}
	return []byte(last)
}

func knockREST(f *harness.Fleet, token, body string) (string, string) {
	status, b := f.REST(token).Do("POST", "/api/v1/calls", body)
	var out struct {
		Error *harness.APIError `json:"error"`
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return fmt.Sprintf("HTTP %d", status), string(b)
	}
	if out.Error == nil {
		return "", string(b)
	}
	return out.Error.Code, out.Error.Message
}

// TestFailClosed: whatever isn't exactly the id of one live agent in scope gets its code,
// runs nowhere, and is recorded, on every door.
func TestFailClosed(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("secret-01")
	off := f.Agent("off-01")
	off.Stop()
	off.WaitOffline()
	f.Agent("gone-01").Stop()
	if s, b := f.REST(f.Admin).Do("DELETE", "/api/v1/agents/gone-01", ""); s/100 != 2 {
		t.Fatalf("remove: %d %s", s, b)
	}
	token, _ := f.PAT("narrow", "web-01,off-01,gone-01,never-01", "shell", false)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}

	agents := []struct{ name, member, code string }{
		{"absent", ``, "no_agent"},
		{"null", `"agent_id":null`, "no_agent"},
		{"empty", `"agent_id":""`, "no_agent"},
		{"blank", `"agent_id":"  \t"`, "no_agent"},
		{"number", `"agent_id":1`, "no_agent"},
		{"array", `"agent_id":["web-01"]`, "no_agent"},
		{"object", `"agent_id":{"id":"web-01"}`, "no_agent"},
		{"true", `"agent_id":true`, "no_agent"},
		{"other case", `"agent_id":"WEB-01"`, "unknown_agent"},
		{"space before", `"agent_id":" web-01"`, "unknown_agent"},
		{"space after", `"agent_id":"web-01 "`, "unknown_agent"},
		{"newline", `"agent_id":"web-01\n"`, "unknown_agent"},
		{"NUL", `"agent_id":"web-01\u0000"`, "unknown_agent"},
		{"prefix", `"agent_id":"web-0"`, "unknown_agent"},
		{"longer", `"agent_id":"web-011"`, "unknown_agent"},
		{"list", `"agent_id":"web-01,off-01"`, "unknown_agent"},
		{"star", `"agent_id":"*"`, "unknown_agent"},
		{"all", `"agent_id":"all"`, "unknown_agent"},
		{"hostname", fmt.Sprintf(`"agent_id":%q`, strings.ToUpper(host)), "unknown_agent"},
		{"homoglyph", `"agent_id":"wеb-01"`, "unknown_agent"},
		{"very long", fmt.Sprintf(`"agent_id":%q`, strings.Repeat("a", 5000)), "unknown_agent"},
		{"unknown", `"agent_id":"nope-01"`, "unknown_agent"},
		{"granted but never enrolled", `"agent_id":"never-01"`, "unknown_agent"},
		{"removed", `"agent_id":"gone-01"`, "unknown_agent"},
		{"out of scope", `"agent_id":"secret-01"`, "unknown_agent"},
		{"offline", `"agent_id":"off-01"`, "offline"},
		{"twice", `"agent_id":"web-01","agent_id":"secret-01"`, "bad_args"},
		{"twice by escape", `"agent_id":"web-01","agent\u005fid":"secret-01"`, "bad_args"},
		{"twice, the same", `"agent_id":"web-01","agent_id":"web-01"`, "bad_args"},
		{"wrong case beside", `"agent_id":"web-01","Agent_ID":"secret-01"`, "bad_args"},
		{"wrong case beside, first", `"AGENT_ID":"secret-01","agent_id":"web-01"`, "bad_args"},
		{"unknown member", `"agent_id":"web-01","agent":"secret-01"`, "bad_args"},
		{"host member", `"agent_id":"web-01","hostname":"secret-01"`, "bad_args"},
		{"twice inside", `"agent_id":"web-01","env":{"A":"1","A":"2"}`, "bad_args"},
		{"null argument", `"agent_id":"web-01","cwd":null`, "bad_args"},
		{"2^53+1", `"agent_id":"web-01","timeout_seconds":9007199254740993`, "bad_args"},
	}
	dir := t.TempDir()
	want := map[string]int{}
	for _, d := range doors(f, token) {
		for i, c := range agents {
			mark := filepath.Join(dir, fmt.Sprintf("%s-%d", strings.ReplaceAll(d.name, " ", "-"), i))
			members := fmt.Sprintf(`"command":"touch %s"`, mark)
			if c.member != "" {
				members += "," + c.member
			}
			code, text := d.knock("shell_exec", members)
			if code != c.code {
				t.Errorf("%s: %s: code %q (%.200s), want %q", d.name, c.name, code, text, c.code)
			}
			want[c.code]++
		}
		for _, c := range bodies(d.name, dir) {
			if code, text := d.raw(c.body); code != c.code {
				t.Errorf("%s: %s: code %q (%.200s), want %q", d.name, c.name, code, text, c.code)
			}
			want[c.code]++
		}
		if code, text := d.knock("fs_read", `"agent_id":"web-01","path":"/etc/hosts"`); code != "unknown_tool" {
			t.Errorf("%s: a tool that isn't granted: %q %s", d.name, code, text)
		}
		want["unknown_tool"]++
		if code, text := d.knock("no_such_tool", `"agent_id":"web-01"`); code != "unknown_tool" {
			t.Errorf("%s: a tool that doesn't exist: %q %s", d.name, code, text)
		}
		want["unknown_tool"]++
		if code, text := d.knock("shell_exec", `"agent_id":"web-01","command":"true"`); code != "" {
			t.Errorf("%s: the right call was refused: %s %s", d.name, code, text)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%d refused calls ran, one is %s", len(left), left[0].Name())
	}
	checkRefusals(t, f, want)
}

// bodies are whole bodies that a lenient reader would take for a call.
func bodies(door, dir string) []struct{ name, body, code string } {
	type b = struct{ name, body, code string }
	args := func(n int, id string) string {
		return fmt.Sprintf(`{"agent_id":%q,"command":"touch %s/%s-raw-%d"}`, id, dir, strings.ReplaceAll(door, " ", "-"), n)
	}
	if door == "rest" {
		run := func(n int) string { return fmt.Sprintf(`{"command":"touch %s/rest-raw-%d"}`, dir, n) }
		return []b{
			{"agent_id twice, apart", `{"agent_id":"web-01","tool":"shell_exec","args":` + run(1) + `,"agent_id":"secret-01"}`, "bad_args"},
			{"args twice", `{"agent_id":"web-01","tool":"shell_exec","args":{},"args":` + run(2) + `}`, "bad_args"},
			{"tool and Tool", `{"agent_id":"web-01","tool":"fs_read","Tool":"shell_exec","args":` + run(3) + `}`, "bad_args"},
			{"trailing data", `{"agent_id":"web-01","tool":"shell_exec","args":` + run(4) + `} {}`, "bad_args"},
			{"an agent_id in args", `{"agent_id":"web-01","tool":"shell_exec","args":{"agent_id":"secret-01","command":"true"}}`, "bad_args"},
		}
	}
	era := harness.Era(strings.TrimPrefix(door, "mcp "))
	return []b{
		{"arguments twice", toolsCall(era, `"name":"shell_exec","arguments":`+args(1, "web-01")+`,"arguments":`+args(2, "secret-01")), "bad_args"},
		{"name and Name", toolsCall(era, `"name":"shell_exec","Name":"fs_read","arguments":`+args(3, "web-01")), "bad_args"},
		{"Arguments", toolsCall(era, `"name":"shell_exec","arguments":`+args(4, "web-01")+`,"Arguments":`+args(5, "secret-01")), "bad_args"},
		{"trailing data", toolsCall(era, `"name":"shell_exec","arguments":`+args(6, "web-01")) + "{}", "bad_args"},
		{"params twice", strings.TrimSuffix(toolsCall(era, `"name":"shell_exec","arguments":`+args(7, "web-01")), "}") + `,"params":{"name":"shell_exec","arguments":` + args(8, "secret-01") + `}}`, "bad_args"},
	}
}

// checkRefusals: every refusal is in the record, under its code.
func checkRefusals(t *testing.T, f *harness.Fleet, want map[string]int) {
	t.Helper()
	var got map[string]int
	harness.Eventually(t, 10*time.Second, "every refusal is recorded", func() bool {
		got = map[string]int{}
		for _, r := range f.AllRecords() {
			if r.Kind == "refusal" {
				got[r.Body.Code] += max(r.Body.Count, 1)
			}
		}
		for code, n := range want {
			if got[code] < n {
				return false
			}
		}
		return true
	})
	t.Logf("recorded: %v, wanted at least %v", got, want)
}

// TestUnknownRemovedAndOutOfScopeLookAlike: byte for byte, whatever the arguments.
func TestUnknownRemovedAndOutOfScopeLookAlike(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("secret-01")
	f.Agent("gone-01").Stop()
	f.REST(f.Admin).Do("DELETE", "/api/v1/agents/gone-01", "")
	token, _ := f.PAT("narrow", "web-01,gone-01", "all", false)
	for _, d := range doors(f, token) {
		for _, args := range []string{
			`"command":"true"`, `"command":7`, `"nonsense":1`, `"command":"true","timeout_seconds":-1`, ``,
		} {
			var answers []string
			for _, id := range []string{"nope-01", "gone-01", "secret-01", "No Such", strings.Repeat("x", 300)} {
				members := fmt.Sprintf(`"agent_id":%q`, id)
				if args != "" {
					members += "," + args
				}
				code, text := d.knock("shell_exec", members)
				answers = append(answers, code+" "+text)
			}
			list := "; drover agents list (GET /api/v1/agents) shows"
			if strings.HasPrefix(d.name, "mcp") {
				list = "; list_agents shows"
			}
			if !strings.Contains(answers[0], list) {
				t.Errorf("%s: no %q in %q", d.name, list, answers[0])
			}
			for _, a := range answers[1:] {
				if a != answers[0] {
					t.Errorf("%s with %s: %q and %q", d.name, args, answers[0], a)
				}
			}
			if !strings.HasPrefix(answers[0], "unknown_agent") {
				t.Errorf("%s with %s: %q", d.name, args, answers[0])
			}
		}
	}
}
