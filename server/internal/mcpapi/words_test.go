package mcpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// foreign are words that are a library's and not Drover's: they help nobody who isn't reading
// its source.
var foreign = regexp.MustCompile(`(?i)json:|mcp\.|jsonrpc2|unmarshal|\bGo (struct|value|type)|\.go\b|goroutine|/root/|/home/|%!|<nil>|\bnil\b|map\[`)

// inOneEra is how clients of one era send: over is the header, meta what _meta has.
type inOneEra struct {
	name   string
	era    harness.Era
	header http.Header
	meta   string // members of _meta
}

func inEras(t *testing.T, f *harness.Fleet) []inOneEra {
	t.Helper()
	return []inOneEra{
		{"2026-07-28", harness.Modern, nil, `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`},
		{"2025-11-25", harness.Legacy, nil, ""},
		{"2025-06-18", harness.Legacy, http.Header{"Mcp-Protocol-Version": {"2025-06-18"}}, ""},
		{"2025-11-25 in a session", harness.Legacy, http.Header{"Mcp-Session-Id": {session(t, f, f.Admin, nil)}}, ""},
	}
}

// rpcAnswer is what came back to one message.
type rpcAnswer struct {
	status int
	raw    string
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    struct{ Code string }
	}
}

// say posts one message and reads until its answer: a stream that stands for more is ended.
func (e inOneEra) say(t *testing.T, f *harness.Fleet, method, body string, header http.Header) rpcAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + f.Admin, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": string(e.era),
	} {
		req.Header.Set(name, value)
	}
	if e.era == harness.Modern {
		req.Header.Set("Mcp-Method", method)
		req.Header.Set("Mcp-Name", "whoami")
	}
	for _, h := range []http.Header{e.header, header} {
		for name, values := range h {
			req.Header[name] = values
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := rpcAnswer{status: resp.StatusCode}
	events := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if data, ok := strings.CutPrefix(line, "data: "); ok || !events {
			got.raw += data
		}
		if err != nil || events && got.raw != "" {
			break
		}
	}
	if got.raw != "" {
		if err := json.Unmarshal([]byte(got.raw), &got); err != nil {
			t.Errorf("%s: %d %s: %v", body, got.status, got.raw, err)
		}
	}
	return got
}

// members of params that some method has.
var wrongMembers = map[string][]string{
	"initialize": {"protocolVersion", "capabilities", "clientInfo"}, "ping": nil, "tools/list": {"cursor"}, "tools/call": {"name", "arguments", "inputResponses", "requestState"},
	"resources/list": {"cursor"}, "resources/templates/list": {"cursor"}, "resources/read": {"uri"}, "resources/subscribe": {"uri"}, "resources/unsubscribe": {"uri"},
	"prompts/list": {"cursor"}, "prompts/get": {"name", "arguments"}, "completion/complete": {"ref", "argument", "context"}, "logging/setLevel": {"level"},
	"server/discover": nil, "subscriptions/listen": {"notifications"}, "sampling/createMessage": {"messages"}, "no/such": {"x"}, "": nil,
	"notifications/initialized": nil, "notifications/cancelled": {"requestId", "reason"}, "notifications/progress": {"progressToken", "progress", "message"}, "notifications/roots/list_changed": nil,
	"notifications/no/such": {"x"},
}

// wrongParams are params of every wrong kind for a method, as JSON; "" is none at all.
func wrongParams(method, meta string) []string {
	out := []string{"", "null", `"x"`, "[]", "[1]", "1", "true", "{}"}
	values := []string{"null", `"x"`, "1", "1.5", "true", "[[1]]", "{}", `{"x":{"y":[1]}}`, `{"name":1}`, `{"type":"ref/no","name":"x"}`, `{"roots":1}`, `{"tools":{},"x":1}`}
	for _, value := range values {
		out = append(out, `{"_meta":`+value+`}`)
	}
	for _, name := range wrongMembers[method] {
		for _, value := range values {
			out = append(out, fmt.Sprintf(`{%q:%s,"_meta":{%s}}`, name, value, meta))
		}
	}
	return out
}

// Whatever the params of a method are, the answer is JSON-RPC's, for the request's own id, and in
// Drover's words: none that a library wrote for who reads its source.
func TestWrongParamsAreAnsweredInOurWords(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for _, e := range inEras(t, f) {
		if e.header.Get("Mcp-Protocol-Version") != "" {
			continue // the older revisions differ in nothing here
		}
		t.Run(e.name, func(t *testing.T) {
			for method := range wrongMembers {
				for _, params := range wrongParams(method, e.meta) {
					e.checkOne(t, f, method, params)
				}
			}
		})
	}
}

func (e inOneEra) checkOne(t *testing.T, f *harness.Fleet, method, params string) {
	t.Helper()
	notification := strings.HasPrefix(method, "notifications/")
	body := `{"jsonrpc":"2.0","method":"` + method + `"`
	if !notification {
		body += `,"id":"q"`
	}
	if params != "" {
		body += `,"params":` + params
	}
	got := e.say(t, f, method, body+"}", nil)
	switch {
	case foreign.MatchString(got.raw):
		t.Errorf("%s %s: not our words: %s", method, params, got.raw)
	case got.status == http.StatusAccepted && notification && got.raw == "":
	case notification && got.Error == nil || got.Error == nil && got.Result == nil && !strings.Contains(got.raw, "subscriptions/acknowledged"):
		t.Errorf("%s %s: %d %q", method, params, got.status, got.raw)
	case got.Error == nil:
	case !notification && string(got.ID) != `"q"` || notification && got.ID != nil && string(got.ID) != "null":
		t.Errorf("%s %s: the id of %s", method, params, got.raw)
	case got.Error.Code == 0 || got.Error.Data.Code == "" || !strings.HasPrefix(got.Error.Message, got.Error.Data.Code+": "):
		t.Errorf("%s %s: %s", method, params, got.raw)
	case !slices.Contains([]int{200, 400, 404}, got.status) || got.status == 200 && e.era == harness.Modern && got.Error.Code == -32601:
		t.Errorf("%s %s: %d %s", method, params, got.status, got.raw)
	}
}

// A method that isn't there is method not found, whatever the era: until 2025-11-25 in an answer of
// status 200, as a JSON-RPC error is, and of 404 from 2026-07-28 on. A notification that isn't known
// means nothing.
func TestAMethodThatIsNotThere(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for _, e := range inEras(t, f) {
		want := http.StatusOK
		if e.era == harness.Modern {
			want = http.StatusNotFound
		}
		got := e.say(t, f, "tools/lst", `{"jsonrpc":"2.0","id":5,"method":"tools/lst"}`, nil)
		if got.status != want || string(got.ID) != "5" || got.Error == nil || got.Error.Code != -32601 || got.Error.Data.Code != "unsupported" {
			t.Errorf("%s: %d %s", e.name, got.status, got.raw)
		}
		for _, note := range []string{"notifications/nothing", "a/b"} {
			got = e.say(t, f, note, `{"jsonrpc":"2.0","method":"`+note+`","params":{"x":[1]}}`, nil)
			if got.status != http.StatusAccepted || got.raw != "" {
				t.Errorf("%s: %s: %d %q", e.name, note, got.status, got.raw)
			}
		}
		if e.header.Get("Mcp-Session-Id") != "" {
			for _, body := range []string{`{"jsonrpc":"2.0","id":5,"method":"tools/lst"}`, `{"jsonrpc":"2.0","method":"notifications/nothing"}`} {
				if got = e.say(t, f, "", body, http.Header{"Mcp-Session-Id": {"stale"}}); got.status != http.StatusNotFound || got.Error.Data.Code != "not_found" {
					t.Errorf("without its session: %d %s", got.status, got.raw)
				}
			}
		}
	}
}

// An id is a text or a whole number, a token for progress is, too: whatever else is there is
// refused alike in every era, with the id null where it's the id, and no call is made.
func TestIDsAndTokens(t *testing.T) {
	f := harness.New(t, harness.Options{})
	agent := connect(t, f, "web-01")
	for _, e := range inEras(t, f) {
		body := func(id, token string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"shell_exec","arguments":{"agent_id":"web-01","command":"x"},"_meta":{%s}}}`,
				id, strings.Trim(e.meta+`,"progressToken":`+token, ","))
		}
		named := http.Header{"Mcp-Name": {"shell_exec"}}
		for _, id := range []string{"1.5", "true", "[]", "{}", "null", "1e400"} {
			got := e.say(t, f, "tools/call", body(id, `"t"`), named)
			if got.status != http.StatusBadRequest || string(got.ID) != "null" || got.Error == nil || got.Error.Code != -32600 {
				t.Errorf("%s: id %s: %d %s", e.name, id, got.status, got.raw)
			}
		}
		for token, rpc := range map[string]int{"1.5": -32602, "true": -32602, "[]": -32602, "{}": -32602, "1e300": -32600, "9007199254740993": -32600} {
			got := e.say(t, f, "tools/call", body(`"q"`, token), named)
			if string(got.ID) != `"q"` || got.Error == nil || got.Error.Code != rpc || got.Error.Data.Code != "bad_args" {
				t.Errorf("%s: token %s: %d %s", e.name, token, got.status, got.raw)
			}
		}
		// What is in order is: nothing before it has reached the host.
		go func() {
			if req, err := agent.Request(); err == nil {
				_ = agent.Answer(req.ID, processOut)
			}
		}()
		if got := e.say(t, f, "tools/call", body("-3", `""`), named); got.status != http.StatusOK || string(got.ID) != "-3" || got.Result == nil {
			t.Errorf("%s: an empty token: %d %s", e.name, got.status, got.raw)
		}
	}
	calls := 0
	for _, r := range f.AllRecords() {
		if r.Kind == "intent" {
			calls++
		}
	}
	if want := len(inEras(t, f)); calls != want {
		t.Errorf("%d calls were made, not %d", calls, want)
	}
}

// What is wrong with a request as a whole is said in our words, too.
func TestWrongRequestsAreAnsweredInOurWords(t *testing.T) {
	f := harness.New(t, harness.Options{})
	const ping = `{"jsonrpc":"2.0","id":5,"method":"ping"}`
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"%s","io.modelcontextprotocol/clientCapabilities":{}}`
	list := func(version string) string {
		return `{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{` + fmt.Sprintf(meta, version) + `}}`
	}
	eras := inEras(t, f)
	modern, old, in := eras[0], eras[1], eras[3]
	for _, c := range []struct {
		name, method, body string
		e                  inOneEra
		header             http.Header
		status, rpc        int
	}{
		{"a revision that nobody has", "ping", ping, old, http.Header{"Mcp-Protocol-Version": {"2025-01-01"}}, 400, -32600},
		{"a later revision", "tools/list", list("2027-01-01"), modern, http.Header{"Mcp-Protocol-Version": {"2027-01-01"}}, 400, -32022},
		{"an older revision in the body", "tools/list", list("2025-11-25"), modern, nil, 400, -32020},
		{"a newer revision in the body", "tools/list", list("2026-07-28"), old, nil, 400, -32020},
		{"a newer revision in the body, in a session", "tools/list", list("2026-07-28"), in, nil, 400, -32020},
		{"a revision in the body, in a session", "tools/list", list("2025-11-25"), in, nil, 400, -32020},
		{"no revision in the header", "tools/list", list("2026-07-28"), old, http.Header{"Mcp-Protocol-Version": nil}, 400, -32020},
		{"JSON alone", "ping", ping, old, http.Header{"Accept": {"application/json"}}, 400, -32600},
		{"JSON alone, in a session", "ping", ping, in, http.Header{"Accept": {"application/json"}}, 400, -32600},
		{"an event's id", "ping", ping, in, http.Header{"Last-Event-Id": {"\xff"}}, 400, -32600},
		{"another method in the header", "tools/call", list("2026-07-28"), modern, nil, 400, -32020},
		{"initialize again", "initialize", initialize, in, nil, 200, 0},
		{"initialize in the modern era", "initialize", strings.Replace(initialize, `"params":{`, `"params":{`+fmt.Sprintf(meta, "2026-07-28")+`,`, 1), modern, nil, 404, -32601},
		{"a batch of none", "", `[]`, old, http.Header{"Mcp-Protocol-Version": {"2025-03-26"}}, 400, -32600},
		{"a batch", "", `[` + ping + `]`, old, nil, 400, -32600},
		{"a batch in a session", "", `[` + ping + `]`, in, nil, 400, -32600},
		{"a batch in the modern era", "", `[` + ping + `]`, modern, nil, 400, -32600},
		{"a batch with a method that isn't there", "", `[` + ping + `,{"jsonrpc":"2.0","method":"x"}]`, old, http.Header{"Mcp-Protocol-Version": {"2025-03-26"}}, 400, -32600},
		{"no JSON", "", `{`, old, nil, 400, -32700},
		{"nothing", "", ``, old, nil, 400, -32700},
		{"a number", "", `7`, in, nil, 400, -32600},
	} {
		got := c.e.say(t, f, c.method, c.body, c.header)
		rpc := 0
		if got.Error != nil {
			rpc = got.Error.Code
			if !strings.HasPrefix(got.Error.Message, got.Error.Data.Code+": ") {
				t.Errorf("%s: %s", c.name, got.raw)
			}
		}
		if got.status != c.status || rpc != c.rpc || foreign.MatchString(got.raw) {
			t.Errorf("%s: %d %s", c.name, got.status, got.raw)
		}
	}
	if resp, body := f.PostMCP(f.Admin, harness.Legacy, http.Header{"Mcp-Protocol-Version": {"2025-03-26"}}, `[`+ping+`]`); resp.StatusCode != 200 || !strings.Contains(string(body), `"result":{}`) {
		t.Errorf("a batch of the revision that has them: %d %s", resp.StatusCode, body)
	}
}
