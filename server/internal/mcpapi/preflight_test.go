package mcpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func TestPreflightRefuses(t *testing.T) {
	call := func(params string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + params + `}`
	}
	for _, c := range []struct {
		name, body string
		rpc        int64
		id         string // of the answer
		tool       string // as recorded
	}{
		{"no JSON", `{"jsonrpc":`, jsonrpc.CodeParseError, "", ""},
		{"empty", ``, jsonrpc.CodeParseError, "", ""},
		{"a string", `"tools/call"`, jsonrpc.CodeInvalidRequest, "", ""},
		{"trailing data", call(`{"name":"fs_stat"}`) + `{}`, jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"invalid UTF-8", call("{\"name\":\"fs_\xff\"}"), jsonrpc.CodeParseError, "7", ""},
		{"arguments twice", call(`{"name":"fs_stat","arguments":{"agent_id":"a"},"arguments":{"agent_id":"b"}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"params twice", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fs_stat"},"params":{"name":"fs_read"}}`, jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"agent_id twice", call(`{"name":"fs_stat","arguments":{"agent_id":"a","path":"/","agent_id":"b"}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"agent_id twice, one of them escaped", call(`{"name":"fs_stat","arguments":{"agent_id":"a","agent\u005fid":"b"}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"twice, deep down", call(`{"name":"fs_stat","arguments":{"agent_id":"a","x":[{"y":{"agent_id":1,"agent_id":2}}]}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"id twice", `{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`, jsonrpc.CodeInvalidRequest, "", ""},
		{"name and Name", call(`{"name":"fs_stat","Name":"shell_exec","arguments":{}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"Name alone", call(`{"Name":"shell_exec","arguments":{}}`), jsonrpc.CodeInvalidParams, "7", ""},
		{"Arguments", call(`{"name":"fs_stat","Arguments":{"agent_id":"a"}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"unknown member of params", call(`{"name":"fs_stat","agent_id":"a","arguments":{}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"Method", `{"jsonrpc":"2.0","id":7,"Method":"tools/call","method":"tools/call","params":{"name":"x"}}`, jsonrpc.CodeInvalidRequest, "7", "x"},
		{"unknown member", `{"jsonrpc":"2.0","id":"x","method":"ping","agent":"a"}`, jsonrpc.CodeInvalidRequest, `"x"`, ""},
		{"no params", `{"jsonrpc":"2.0","id":7,"method":"tools/call"}`, jsonrpc.CodeInvalidParams, "7", ""},
		{"params an array", call(`["fs_stat"]`), jsonrpc.CodeInvalidParams, "7", ""},
		{"arguments an array", call(`{"name":"fs_stat","arguments":["a"]}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"name a number", call(`{"name":1}`), jsonrpc.CodeInvalidParams, "7", ""},
		{"integer beyond 2^53", call(`{"name":"fs_read","arguments":{"agent_id":"a","offset":9007199254740993}}`), jsonrpc.CodeInvalidRequest, "7", "fs_read"},
		{"number out of range", call(`{"name":"fs_read","arguments":{"agent_id":"a","offset":1e999}}`), jsonrpc.CodeInvalidRequest, "7", "fs_read"},
		{"too deep", call(`{"name":"fs_stat","arguments":{"x":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"bad message in a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"},` + call(`{"name":"a","Name":"b"}`) + `]`, jsonrpc.CodeInvalidParams, "7", "a"},
		{"an id twice in a batch", `[` + call(`{"name":"a"}`) + `,` + call(`{"name":"b"}`) + `]`, jsonrpc.CodeInvalidRequest, "7", "b"},
		{"an id twice in a batch, spelt otherwise", `[{"jsonrpc":"2.0","id":70,"method":"ping"},{"jsonrpc":"2.0","id":7e1,"method":"ping"}]`, jsonrpc.CodeInvalidRequest, "7e1", ""},
		{"an id with a fraction", `{"jsonrpc":"2.0","id":7.5,"method":"tools/call","params":{"name":"fs_stat"}}`, jsonrpc.CodeInvalidRequest, "", "fs_stat"},
		{"a cancel of an id with a fraction", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":71.9}}`, jsonrpc.CodeInvalidParams, "", ""},
		{"an id twice in a batch, for the SDK", `[{"jsonrpc":"2.0","id":7,"method":"ping"},{"jsonrpc":"2.0","id":7.5,"method":"ping"}]`, jsonrpc.CodeInvalidRequest, "", ""},
		{"a text as id twice in a batch", `[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"\u0061","method":"ping"}]`, jsonrpc.CodeInvalidRequest, `"\u0061"`, ""},
		{"true as id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, jsonrpc.CodeInvalidRequest, "", ""},
		{"a list as id", `{"jsonrpc":"2.0","id":[1],"method":"tools/call","params":{"name":"fs_stat"}}`, jsonrpc.CodeInvalidRequest, "", "fs_stat"},
		{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"x/y"}`, jsonrpc.CodeInvalidRequest, "", ""},
		{"null as id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, jsonrpc.CodeInvalidRequest, "", ""},
		{"a call without an id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"fs_stat"}}`, jsonrpc.CodeInvalidRequest, "", "fs_stat"},
		{"a notification with an id", `{"jsonrpc":"2.0","id":1,"method":"notifications/cancelled"}`, jsonrpc.CodeInvalidRequest, "1", ""},
		{"a response without an id", `{"jsonrpc":"2.0","result":{}}`, jsonrpc.CodeInvalidRequest, "", ""},
		{"a response whose error is a text", `{"jsonrpc":"2.0","id":1,"error":"no"}`, jsonrpc.CodeInvalidRequest, "1", ""},
		{"neither a request nor a response", `{"jsonrpc":"2.0","id":1}`, jsonrpc.CodeInvalidRequest, "1", ""},
		{"another JSON-RPC", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, jsonrpc.CodeInvalidRequest, "1", ""},
		{"no JSON-RPC", `{"id":1,"method":"ping"}`, jsonrpc.CodeInvalidRequest, "1", ""},
		{"a token with a fraction", call(`{"name":"fs_stat","_meta":{"progressToken":1.5}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"true as token", call(`{"name":"fs_stat","_meta":{"progressToken":true}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"an object as token", call(`{"name":"fs_stat","_meta":{"progressToken":{}}}`), jsonrpc.CodeInvalidParams, "7", "fs_stat"},
		{"a token that's too large", call(`{"name":"fs_stat","_meta":{"progressToken":1e300}}`), jsonrpc.CodeInvalidRequest, "7", "fs_stat"},
		{"a list as token of another method", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"progressToken":[]}}}`, jsonrpc.CodeInvalidParams, "7", ""},
		{"a number as cursor", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":1}}`, jsonrpc.CodeInvalidParams, "7", ""},
		{"a cancel of an object", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`, jsonrpc.CodeInvalidParams, "", ""},
		{"batch too long", `[` + strings.Repeat(`{"jsonrpc":"2.0","method":"x"},`, 40) + `{}]`, jsonrpc.CodeInvalidRequest, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, bad := preflight([]byte(c.body))
			if bad == nil {
				t.Fatal("it passed")
			}
			if bad.err.Code != protocol.CodeBadArgs || bad.rpc != c.rpc || string(bad.id) != c.id || bad.tool != c.tool {
				t.Errorf("got %s, rpc %d, id %s, tool %q; want bad_args, %d, %s, %q (%s)", bad.err.Code, bad.rpc, bad.id, bad.tool, c.rpc, c.id, c.tool, bad.err.Message)
			}
			var answer struct {
				Error struct {
					Data struct{ Code string }
				}
			}
			if err := json.Unmarshal(encodeRPCError(bad.id, rpcError(bad.rpc, bad.err)), &answer); err != nil || answer.Error.Data.Code != "bad_args" {
				t.Errorf("the answer: %+v, %v", answer, err)
			}
		})
	}
}

func TestPreflightPasses(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       []message
	}{
		{"call", `{"params":{"_meta":{"progressToken":1,"x":{"y":null}},"arguments":{"agent_id":"a","path":"/"},"name":"fs_stat"},"method":"tools/call","id":"q","jsonrpc":"2.0"}`,
			[]message{{id: jsontext.Value(`"q"`), method: "tools/call", tool: "fs_stat"}}},
		{"call without arguments", `{"jsonrpc":"2.0","id":1795998127874,"method":"tools/call","params":{"name":"whoami","inputResponses":null,"requestState":"s","task":{}}}`,
			[]message{{id: jsontext.Value(`1795998127874`), method: "tools/call", tool: "whoami"}}},
		{"a whole number, spelt otherwise", `{"jsonrpc":"2.0","id":7.0e1,"method":"ping"}`, []message{{id: jsontext.Value(`7.0e1`), method: "ping"}}},
		{"a notification that says it has no id", `{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}`, []message{{id: nil, method: "notifications/initialized"}}},
		{"null as token", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":null}}}`, []message{{id: jsontext.Value("1"), method: "ping"}}},
		{"an empty token", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":""}}}`, []message{{id: jsontext.Value("1"), method: "ping"}}},
		{"response", `{"jsonrpc":"2.0","id":3,"result":{"a":1}}`, []message{{id: jsontext.Value("3"), method: "", tool: ""}}},
		{"error response", `{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"m"}}`, []message{{id: jsontext.Value("3"), method: "", tool: ""}}},
		{"notification", `{"method":"notifications/initialized","jsonrpc":"2.0"}`, []message{{id: nil, method: "notifications/initialized", tool: ""}}},
		{"unknown method with params of its own", `{"jsonrpc":"2.0","id":1,"method":"x/y","params":{"Name":1}}`, []message{{id: jsontext.Value("1"), method: "x/y", tool: ""}}},
		{"batch", ` [{"jsonrpc":"2.0","id":1,"method":"ping"}, {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a"}}] `,
			[]message{{id: jsontext.Value("1"), method: "ping", tool: ""}, {id: jsontext.Value("2"), method: "tools/call", tool: "a"}}},
		{"batch with a number and a text as ids, notifications, and an answer", `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"1","method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":{}}]`,
			[]message{{id: jsontext.Value("1"), method: "ping", tool: ""}, {id: jsontext.Value(`"1"`), method: "ping", tool: ""}, {id: nil, method: "x", tool: ""}, {id: nil, method: "x", tool: ""}, {id: jsontext.Value("1"), method: "", tool: ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, bad := preflight([]byte(c.body))
			if bad != nil {
				t.Fatalf("refused: %s", bad.err.Message)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(message{}), cmpopts.IgnoreFields(message{}, "named", "unknown", "tag", "args", "meta", "more", "batch")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Beside the arguments of calls a body is small; those alone may be large, whichever message of a
// batch they belong to.
func TestWhatIsBesideTheArguments(t *testing.T) {
	large, many := `"`+strings.Repeat("x", maxAside)+`"`, "[{}"+strings.Repeat(",{}", maxAsideValues)+"]"
	call := func(args, meta string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fs_write","arguments":` + args + `,"_meta":` + meta + `}}`
	}
	for _, x := range []string{large, many} {
		object := `{"a":` + x + `}`
		for name, body := range map[string]string{
			"initialize":      `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"experimental":` + object + `},"clientInfo":{"name":"x","version":"1"}}}`,
			"arguments of it": `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"arguments":` + object + `}}`,
			"a notification":  `{"jsonrpc":"2.0","method":"notifications/progress","params":` + object + `}`,
			"a response":      `{"jsonrpc":"2.0","id":7,"result":` + object + `}`,
			"_meta of a call": call(`{}`, object),
			"task of a call":  `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fs_write","arguments":{},"task":` + object + `}}`,
			"a batch":         `[{"jsonrpc":"2.0","id":6,"method":"ping"},` + call(`{}`, object) + `]`,
		} {
			_, bad := preflight([]byte(body))
			if bad == nil || bad.status != 413 || bad.err.Code != protocol.CodeTooLarge {
				t.Errorf("%s with %.9s…: %+v", name, x, bad)
			} else if id := string(bad.id); name != "a batch" && name != "a notification" && id != "7" {
				t.Errorf("%s: its id is %s", name, id)
			}
		}
		for name, body := range map[string]string{
			"a call": call(object, `{}`), "white space within": call("{"+strings.Repeat(" ", maxAside)+"}", `{}`), "null": call("null", "{}"),
			"a batch of calls": `[` + call(object, `{}`) + `,` + strings.Replace(call(object, `{}`), `"id":7`, `"id":8`, 1) + `]`,
		} {
			if _, bad := preflight([]byte(body)); bad != nil {
				t.Errorf("%s with %.9s…: %s", name, x, bad.err.Message)
			}
		}
	}
	if got, err := splice([]byte(`{"agent_id":"a",` + strings.Repeat(" ", 1<<20) + `"path":"/"}`)); err != nil || cap(got.rest) > 100 {
		t.Errorf("%d bytes are kept of %s, %v", cap(got.rest), got.rest, err)
	}
}

func TestRefusalsEchoNoValue(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"stdin":"` + secret + `","stdin":"` + secret + `"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":"` + secret + `"}}`,
	} {
		_, bad := preflight([]byte(body))
		if bad == nil {
			t.Fatal("it passed")
		}
		if strings.Contains(string(encodeRPCError(bad.id, rpcError(bad.rpc, bad.err))), secret) {
			t.Errorf("the answer repeats a value: %s", bad.err.Message)
		}
	}
}

func TestSplice(t *testing.T) {
	for _, c := range []struct{ name, in, agent, queue, rest string }{
		{"absent", `{"path":"/"}`, "", "", `{"path":"/"}`},
		{"nothing", ``, "", "", `{}`},
		{"null", `null`, "", "", `{}`},
		{"alone", `{"agent_id":"web-01"}`, `"web-01"`, "", `{}`},
		{"first", `{"agent_id":"web-01","path":"/"}`, `"web-01"`, "", `{"path":"/"}`},
		{"in the middle, bytes kept", `{ "a" : 1.50 , "agent_id" : "w" , "b":"\u00e9\/" }`, `"w"`, "", `{"a" : 1.50,"b":"\u00e9\/"}`},
		{"last", `{"path":"/","agent_id":null}`, `null`, "", `{"path":"/"}`},
		{"escaped name", `{"agent\u005fid":"w","x":1}`, `"w"`, "", `{"x":1}`},
		{"other case stays", `{"Agent_ID":"w","x":1}`, "", "", `{"Agent_ID":"w","x":1}`},
		{"nested stays", `{"env":{"agent_id":"b"},"agent_id":["a"]}`, `["a"]`, "", `{"env":{"agent_id":"b"}}`},
		{"queue", `{"queue_for_seconds":60,"agent_id":"w","x":1}`, `"w"`, "60", `{"x":1}`},
		{"queue, escaped, whatever it is", `{"x":1,"queue\u005ffor_seconds":{"a":1}}`, "", `{"a":1}`, `{"x":1}`},
		{"queue in another case or nested stays", `{"Queue_For_Seconds":1,"env":{"queue_for_seconds":"2"}}`, "", "", `{"Queue_For_Seconds":1,"env":{"queue_for_seconds":"2"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := splice([]byte(c.in))
			if err != nil || string(got.agent) != c.agent || string(got.queue) != c.queue || string(got.rest) != c.rest {
				t.Errorf("got %+v, %v; want %s, %s, %s", got, err, c.agent, c.queue, c.rest)
			}
		})
	}
	for _, in := range []string{
		`[]`, `"x"`, `{"a":1,"a":2}`, `{"agent_id":"a","agent_id":"b"}`, `{"queue_for_seconds":1,"queue_for_seconds":1}`,
		`{"queue_for_seconds":1,"queue\u005ffor_seconds":1}`, `{"a":`,
	} {
		if got, err := splice([]byte(in)); err == nil {
			t.Errorf("splice(%s) = %+v", in, got)
		}
	}
}

func TestQueueFor(t *testing.T) {
	for in, want := range map[string]time.Duration{"": 0, "1": time.Second, "1.0": time.Second, "6e1": time.Minute, "604800": 7 * 24 * time.Hour} {
		var raw jsontext.Value
		if in != "" {
			raw = jsontext.Value(in)
		}
		if got, err := (&spliced{queue: raw}).queueFor(); err != nil || got != want {
			t.Errorf("%q: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"0", "-1", "604801", "1.5", "0.0", "6048001e-1", "1e-1", `"60"`, "true", "null", "[60]", `{}`, "99999999999999999999", "-0"} {
		if got, err := (&spliced{queue: jsontext.Value(in)}).queueFor(); err == nil || fleet.AsError(err).Code != protocol.CodeBadArgs {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
}

func FuzzSplice(f *testing.F) {
	f.Add([]byte(`{"agent_id":"a","x":[1,{"y":"z"}]}`))
	f.Add([]byte(`{ "x" : "\u00e9" , "agent\u005fid" : null, "queue_for_seconds":7 }`))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := splice(in)
		if err != nil {
			return
		}
		if !got.rest.IsValid() || got.rest.Kind() != '{' {
			t.Fatalf("%s became %s", in, got.rest)
		}
		m := map[string]jsontext.Value{}
		if bad := members(got.rest, func(name string, v jsontext.Value) *refusal { m[name] = v; return nil }); bad != nil {
			t.Fatal(bad.err)
		}
		for _, own := range []string{agentMember, queueMember} {
			if _, ok := m[own]; ok {
				t.Fatalf("%s stayed in %s", own, got.rest)
			}
		}
		for _, v := range []jsontext.Value{got.agent, got.queue} {
			if len(v) > 0 && !v.IsValid() {
				t.Fatalf("taken out: %s", v)
			}
		}
	})
}

func FuzzPreflight(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"agent_id":"x"}}}`, `[{}]`, `[[]]`, `{"id":`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msgs, bad := preflight(body)
		if bad != nil {
			if bad.err == nil || !json.Valid(encodeRPCError(bad.id, rpcError(bad.rpc, bad.err))) {
				t.Fatalf("%q: an answer that can't be sent", body)
			}
			return
		}
		for _, m := range msgs {
			if m.method == methodCall && m.tool == "" {
				t.Fatalf("%q: a call without a tool passed", body)
			}
		}
	})
}

func TestAnErrorsDataIsKept(t *testing.T) {
	got := withCode(json.RawMessage(`{"requiredCapabilities":{"sampling":{}}}`), protocol.CodeUnsupported)
	if want := `{"code":"unsupported","requiredCapabilities":{"sampling":{}}}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := withCode(json.RawMessage(`{"code":"unknown_tool"}`), protocol.CodeBadArgs); string(got) != `{"code":"unknown_tool"}` {
		t.Errorf("a code was replaced: %s", got)
	}
	if got := withCode(json.RawMessage(`"text"`), protocol.CodeBadArgs); string(got) != `"text"` {
		t.Errorf("data that is no object was replaced: %s", got)
	}
}

func TestSDKErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   int
		code   string
		ours   bool
	}{
		{"session", 404, "session not found\n", 404, "not_found", false},
		{"another's session", 403, "session user mismatch\n", 404, "not_found", false},
		{"method", 404, `{"jsonrpc":"2.0","id":4,"error":{"code":-32601,"message":"x"}}`, 404, "unsupported", false},
		{"ours already", 400, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"x","data":{"code":"unknown_tool"}}}`, 400, "unknown_tool", true},
		{"params", 400, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"x"}}`, 400, "bad_args", false},
		{"accept", 400, "Accept must contain both\n", 400, "bad_args", false},
		{"size", 413, "too big\n", 413, "too_large", false},
		{"GET without session", 405, "Method Not Allowed\n", 405, "unsupported", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, id := c.status, jsontext.Value(nil)
			e, ours := sdkError(&status, []byte(c.body), &id)
			var data struct{ Code string }
			if err := errors.Join(json.Unmarshal(e.Data, &data)); err != nil || data.Code != c.code || status != c.want || ours != c.ours {
				t.Errorf("got %d %s ours=%v %v", status, e.Data, ours, err)
			}
		})
	}
}
