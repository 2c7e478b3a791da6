package restapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func TestCallRunsOnTheAgentItNames(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"echo hi"}}`)
	if a.status != http.StatusOK {
		t.Fatalf("HTTP %d: %s", a.status, a.body)
	}
	c := decode[Call](t, a)
	if c.State != "succeeded" || c.AgentID != "web-01" || c.Error != nil || !strings.Contains(string(c.Result), `"stdout":"hi\n"`) || c.CallID == "" {
		t.Errorf("got %s", a.body)
	}
	if diff := cmp.Diff([]string{`shell_exec {"command":"echo hi"}`}, w.hosts.ran); diff != "" {
		t.Error(diff)
	}
	a = w.do("GET", "/api/v1/calls/"+c.CallID, pat, "")
	shown := decode[Call](t, a)
	if shown.State != "succeeded" || string(shown.Result) != string(c.Result) {
		t.Errorf("show: HTTP %d %s", a.status, a.body)
	}
	list := decode[CallList](t, w.do("GET", "/api/v1/calls?agent_id=web-01&tool=shell_exec&state=succeeded", pat, ""))
	if len(list.Calls) != 1 || list.Calls[0].CallID != c.CallID || list.Calls[0].Edge != "rest" || *list.Calls[0].ExitCode != 0 {
		t.Errorf("list: %+v", list)
	}
}

// What is wrong with a call is refused with the right code, nothing runs, and the refusal
// is in the record.
func TestCallsFailClosed(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	w.agent("db-01", nil)
	w.agent("gone-01", nil)
	w.agent("down-01", nil)
	w.hosts.online["down-01"] = false
	admin := w.pat("a", true, everyAgent, everyTool)
	if a := w.do("DELETE", "/api/v1/agents/gone-01", admin, ""); a.status != http.StatusNoContent {
		t.Fatalf("remove: %d %s", a.status, a.body)
	}
	pat := w.pat("p", false, fleet.AgentSet{IDs: []fleet.AgentID{"web-01", "gone-01", "down-01"}}, fleet.ToolSet{Names: []string{"shell_exec", "fs_read", "fs_download"}})
	call := func(agent string) string {
		return `{"agent_id":` + agent + `,"tool":"shell_exec","args":{"command":"id"}}`
	}
	want := map[string]int{}
	for _, c := range []struct {
		name, body, code string
		status           int
	}{
		{"absent", `{"tool":"shell_exec","args":{"command":"id"}}`, "no_agent", 400},
		{"null", call(`null`), "no_agent", 400},
		{"blank", call(`" "`), "no_agent", 400},
		{"empty", call(`""`), "no_agent", 400},
		{"number", call(`7`), "no_agent", 400},
		{"array", call(`["web-01"]`), "no_agent", 400},
		{"object", call(`{"id":"web-01"}`), "no_agent", 400},
		{"other case", call(`"Web-01"`), "unknown_agent", 404},
		{"spaces", call(`" web-01 "`), "unknown_agent", 404},
		{"prefix", call(`"web"`), "unknown_agent", 404},
		{"hostname", call(`"host-of-web-01"`), "unknown_agent", 404},
		{"unknown", call(`"nope"`), "unknown_agent", 404},
		{"removed", call(`"gone-01"`), "unknown_agent", 404},
		{"out of scope", call(`"db-01"`), "unknown_agent", 404},
		{"offline", call(`"down-01"`), "offline", 503},
		{"twice", `{"agent_id":"db-01","agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}}`, "bad_args", 400},
		{"twice by escape", `{"agent_id":"db-01","agent\u005fid":"web-01","tool":"shell_exec","args":{"command":"id"}}`, "bad_args", 400},
		{"twice inside", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id","command":"rm"}}`, "bad_args", 400},
		{"twice deep", `{"agent_id":"web-01","tool":"shell_exec","args":{"env":{"A":"1","A":"2"},"command":"id"}}`, "bad_args", 400},
		{"args twice", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"},"args":{"command":"rm"}}`, "bad_args", 400},
		{"wrong case", `{"Agent_ID":"web-01","tool":"shell_exec","args":{"command":"id"}}`, "bad_args", 400},
		{"wrong case beside", `{"agent_id":"web-01","Tool":"x","tool":"shell_exec"}`, "bad_args", 400},
		{"unknown member", `{"agent_id":"web-01","tool":"shell_exec","host":"db-01"}`, "bad_args", 400},
		{"agent in args", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id","agent_id":"db-01"}}`, "bad_args", 400},
		{"no tool", `{"agent_id":"web-01"}`, "bad_args", 400},
		{"null tool", `{"agent_id":"web-01","tool":null}`, "bad_args", 400},
		{"tool of wrong type", `{"agent_id":"web-01","tool":1}`, "bad_args", 400},
		{"unknown tool", `{"agent_id":"web-01","tool":"nope"}`, "unknown_tool", 404},
		{"not granted", `{"agent_id":"web-01","tool":"fs_write","args":{"path":"/x","content":""}}`, "unknown_tool", 404},
		{"bad args", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":7}}`, "bad_args", 400},
		{"null args", `{"agent_id":"web-01","tool":"shell_exec","args":null}`, "bad_args", 400},
		{"large number", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id","timeout_seconds":9007199254740993}}`, "bad_args", 400},
		{"a file, down", `{"agent_id":"web-01","tool":"fs_download","args":{"path":"/x"}}`, "bad_args", 400},
		{"wait", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"},"wait_seconds":301}`, "bad_args", 400},
		{"queue, negative", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":-1}`, "bad_args", 400},
		{"queue, too long", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":604801}`, "bad_args", 400},
		{"queue, beyond counting", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":9007199254740991}`, "bad_args", 400},
		{"queue, no whole number", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":1.5}`, "bad_args", 400},
		{"queue, text", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":"60"}`, "bad_args", 400},
		{"queue, null", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id"},"queue_for_seconds":null}`, "bad_args", 400},
		{"queue as an argument", `{"agent_id":"down-01","tool":"shell_exec","args":{"command":"id","queue_for_seconds":60}}`, "bad_args", 400},
		{"array body", `[]`, "bad_args", 400},
		{"trailing", call(`"web-01"`) + `{}`, "bad_args", 400},
		{"deep", `{"agent_id":"web-01","tool":"shell_exec","args":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "bad_args", 400},
		{"no body", ``, "bad_args", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			want[c.code]++
			a := w.do("POST", "/api/v1/calls", pat, c.body)
			if a.status != c.status || a.code() != c.code {
				t.Errorf("HTTP %d %s, want %d %s", a.status, a.body, c.status, c.code)
			}
			if n := w.hosts.executed(); n != 0 {
				t.Fatalf("%d calls ran", n)
			}
		})
	}
	if diff := cmp.Diff(want, w.refusals()); diff != "" {
		t.Errorf("what was refused isn't what is in the record: %s", diff)
	}
}

// Unknown, malformed, removed and out of scope are the same bytes, whatever the arguments.
func TestUnknownAgentsCannotBeToldApart(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("mine", nil)
	w.agent("other", nil)
	w.agent("gone", nil)
	if err := w.enrol.RemoveAgent(t.Context(), "system:test", "gone"); err != nil {
		t.Fatal(err)
	}
	pat := w.pat("p", false, fleet.AgentSet{IDs: []fleet.AgentID{"mine", "gone"}}, everyTool)
	for _, args := range []string{`{"command":"id"}`, `{"command":7}`, `{}`} {
		var first string
		for _, id := range []string{"nope", "other", "gone", "NOPE", "-"} {
			call := w.do("POST", "/api/v1/calls", pat, fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":%s}`, id, args))
			show := w.do("GET", "/api/v1/agents/"+id, pat, "")
			for _, a := range []answerOf{call, show} {
				a.header.Del("Date")
				got := fmt.Sprint(a.status, a.header, a.body)
				if first == "" {
					first = got
				}
				if got != first {
					t.Errorf("%s differs:\n%s\n%s", id, first, got)
				}
			}
		}
	}
}

// Each code has one status, and an outcome isn't a refusal: a call that ran and failed
// answers 200.
func TestStatusOfEveryCode(t *testing.T) {
	want := map[protocol.Code]int{
		protocol.CodeUnauthenticated: 401, protocol.CodeNoAgent: 400, protocol.CodeUnknownAgent: 404, protocol.CodeUnknownTool: 404,
		protocol.CodeBadArgs: 400, protocol.CodeUnsupported: 422, protocol.CodeOffline: 503, protocol.CodeDenied: 403,
		protocol.CodeApprovalPending: 409, protocol.CodeExpired: 409, protocol.CodeConflict: 409, protocol.CodeToolFailed: 502,
		protocol.CodeTimedOut: 504, protocol.CodeCancelled: 409, protocol.CodeNotStarted: 503, protocol.CodeOutcomeUnknown: 502,
		protocol.CodeTooLarge: 413, protocol.CodeRateLimited: 429, protocol.CodeNotFound: 404, protocol.CodeUnavailable: 503,
		protocol.CodeInternal: 500,
	}
	for _, c := range protocol.Codes() {
		if got := (refusal{fe: &fleet.Error{Code: c}}).GetStatus(); got != want[c] || got != edge.Status(c) {
			t.Errorf("%s: HTTP %d, want %d", c, got, want[c])
		}
	}
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	for code, state := range map[protocol.Code]string{
		protocol.CodeToolFailed: "failed", protocol.CodeTimedOut: "timed_out", protocol.CodeDenied: "denied", protocol.CodeTooLarge: "failed",
		protocol.CodeNotStarted: "not_started", protocol.CodeExpired: "expired",
	} {
		w.hosts.answer = func(_ context.Context, req *protocol.Request) *protocol.Response {
			return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Error: &protocol.Error{Code: code, Message: "m"}}
		}
		a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"x","timeout_seconds":2}}`)
		c := decode[Call](t, a)
		if a.status != http.StatusOK || c.State != state || c.Error == nil || c.Error.Code != string(code) {
			t.Errorf("%s: HTTP %d %s", code, a.status, a.body)
		}
	}
}

func TestOpenCallsAndCancel(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat, other := w.pat("p", false, everyAgent, everyTool), w.pat("o", false, everyAgent, everyTool)
	admin := w.pat("a", true, everyAgent, fleet.ToolSet{Names: []string{"diag"}})
	w.hosts.answer = func(ctx context.Context, req *protocol.Request) *protocol.Response {
		<-ctx.Done()
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Error: &protocol.Error{Code: protocol.CodeCancelled, Message: "ended"}}
	}
	a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"sleep 9"},"wait_seconds":1}`)
	c := decode[Call](t, a)
	if a.status != http.StatusAccepted || fleet.State(c.State).Final() || c.Error != nil {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	for _, path := range []string{"/api/v1/calls/" + c.CallID, "/api/v1/calls/00000000-0000-7000-8000-000000000000"} {
		if a := w.do("GET", path, other, ""); a.status != http.StatusNotFound || a.code() != "not_found" {
			t.Errorf("another's call: HTTP %d %s", a.status, a.body)
		}
	}
	if a := w.do("POST", "/api/v1/calls/"+c.CallID+"/cancel", other, ""); a.status != http.StatusNotFound {
		t.Errorf("another's cancel: HTTP %d %s", a.status, a.body)
	}
	if l := decode[CallList](t, w.do("GET", "/api/v1/calls", other, "")); len(l.Calls) != 0 {
		t.Errorf("another's list: %+v", l)
	}
	if l := decode[CallList](t, w.do("GET", "/api/v1/calls", admin, "")); len(l.Calls) != 1 {
		t.Errorf("the administrator's list: %+v", l)
	}
	a = w.do("POST", "/api/v1/calls/"+c.CallID+"/cancel", pat, "")
	if c = decode[Call](t, a); a.status != http.StatusOK || c.State != "cancelled" || c.Error.Code != "cancelled" {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
}

func TestIdempotencyKey(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	body := `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"date"},"idempotency_key":"k1"}`
	first := decode[Call](t, w.do("POST", "/api/v1/calls", pat, body))
	again := decode[Call](t, w.do("POST", "/api/v1/calls", pat, body))
	if again.CallID != first.CallID || !again.Joined || w.hosts.executed() != 1 {
		t.Errorf("%+v, then %+v; ran %d times", first, again, w.hosts.executed())
	}
	a := w.do("POST", "/api/v1/calls", pat, strings.Replace(body, "date", "reboot", 1))
	if a.status != http.StatusConflict || a.code() != "conflict" {
		t.Errorf("other arguments: HTTP %d %s", a.status, a.body)
	}
}

func TestCallerIsTheToken(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("ci", false, everyAgent, everyTool)
	var caller protocol.Caller
	w.hosts.answer = func(_ context.Context, req *protocol.Request) *protocol.Response {
		caller = req.Caller
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Result: jsontext.Value(processOK)}
	}
	if a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}}`, "User-Agent", "evil\u202e/1", "X-Drover-Caller", "root"); a.status != 200 {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	if caller.User != "ci" || !strings.HasPrefix(caller.Principal, "pat:") || strings.ContainsRune(caller.Client, '\u202e') {
		t.Errorf("%+v", caller)
	}
}

// A call that may wait for its agent: open and listed as queued, taken back by its id or
// with all that wait for the agent, by an administrator alone.
func TestQueuedCallsAndPurge(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("down-01", nil)
	w.agent("down-02", nil)
	w.hosts.online["down-01"], w.hosts.online["down-02"] = false, false
	pat, admin := w.pat("p", false, everyAgent, everyTool), w.pat("a", true, everyAgent, fleet.ToolSet{Names: []string{"diag"}})
	queue := func(agent string) string {
		t.Helper()
		a := w.do("POST", "/api/v1/calls", pat, fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":{"command":"id"},"wait_seconds":1,"queue_for_seconds":3600}`, agent))
		c := decode[Call](t, a)
		if left := time.Until(c.QueuedUntil); a.status != http.StatusAccepted || c.State != "queued" || c.Error != nil || left < 50*time.Minute || left > time.Hour {
			t.Fatalf("HTTP %d %s", a.status, a.body)
		}
		return c.CallID
	}
	one, two, three, other := queue("down-01"), queue("down-01"), queue("down-01"), queue("down-02")
	list := decode[CallList](t, w.do("GET", "/api/v1/calls?state=queued", pat, ""))
	if len(list.Calls) != 4 || list.Calls[0].CallID != other || list.Calls[0].QueuedUntil.IsZero() {
		t.Errorf("the list: %+v", list)
	}
	if c := decode[Call](t, w.do("POST", "/api/v1/calls/"+one+"/cancel", pat, "")); c.State != "cancelled" || !strings.Contains(c.Error.Message, "nothing ran") {
		t.Errorf("taken back: %+v", c)
	}
	for _, c := range []struct {
		pat, path string
		status    int
	}{{pat, "/api/v1/agents/down-01/purge", 403}, {admin, "/api/v1/agents/nope/purge", 404}, {admin, "/api/v1/agents/DOWN-01/purge", 404}} {
		if a := w.do("POST", c.path, c.pat, ""); a.status != c.status {
			t.Errorf("%s: HTTP %d %s", c.path, a.status, a.body)
		}
	}
	purge := func(want int) {
		t.Helper()
		a := w.do("POST", "/api/v1/agents/down-01/purge", admin, "")
		if p := decode[Purged](t, a); a.status != http.StatusOK || p.Cancelled != want {
			t.Errorf("HTTP %d %s, want %d", a.status, a.body, want)
		}
	}
	purge(2)
	for id, want := range map[string]string{two: "cancelled", three: "cancelled", other: "queued"} {
		if c := decode[Call](t, w.do("GET", "/api/v1/calls/"+id+"?wait_seconds=1", admin, "")); c.State != want {
			t.Errorf("%s is %s, want %s", id, c.State, want)
		}
	}
	purge(0)
	if rows := decode[AuditList](t, w.do("GET", "/api/v1/audit?kind=admin&agent_id=down-01", admin, "")); len(rows.Rows) < 2 || !strings.Contains(string(rows.Rows[0].Body), `"action":"agent.purge"`) {
		t.Errorf("who purged isn't on record: %+v", rows)
	}
	if n := w.hosts.executed(); n != 0 {
		t.Errorf("%d calls ran", n)
	}
}

// What was learnt of an unknown outcome is shown with the call, in lists, and in the record.
func TestEvidenceIsShown(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	w.hosts.answer = func(_ context.Context, req *protocol.Request) *protocol.Response {
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Error: &protocol.Error{Code: protocol.CodeOutcomeUnknown, Message: "it was restarted"}}
	}
	c := decode[Call](t, w.do("POST", "/api/v1/calls", admin, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}}`))
	if c.State != "outcome_unknown" || c.Evidence != "" {
		t.Fatalf("got %+v", c)
	}
	if err := w.db.RecordEvidence(t.Context(), fleet.Evidence{CallID: fleet.CallID(c.CallID), Text: "it had ended\u202e with exit code 0"}); err != nil {
		t.Fatal(err)
	}
	const want = `it had ended\xe2\x80\xae with exit code 0`
	if c = decode[Call](t, w.do("GET", "/api/v1/calls/"+c.CallID, admin, "")); c.Evidence != want || c.State != "outcome_unknown" {
		t.Errorf("shown: %+v", c)
	}
	if l := decode[CallList](t, w.do("GET", "/api/v1/calls?state=outcome_unknown", admin, "")); len(l.Calls) != 1 || l.Calls[0].Evidence != want || l.Calls[0].EvidenceAt.IsZero() {
		t.Errorf("listed: %+v", l)
	}
	rows := decode[AuditList](t, w.do("GET", "/api/v1/audit?kind=evidence", admin, ""))
	if len(rows.Rows) != 1 || rows.Rows[0].CallID != c.CallID || rows.Rows[0].AgentID != "web-01" {
		t.Errorf("the record: %+v", rows)
	}
	if all := decode[AuditList](t, w.do("GET", "/api/v1/audit?call_id="+c.CallID, admin, "")); len(all.Rows) != 3 {
		t.Errorf("the call's rows: %+v", all)
	}
}

// A tool that moves a file's bytes says so, and is refused with the way that does it.
func TestFileToolsPointToTheirInterface(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	for tool, args := range map[string]string{"fs_download": `{"path":"/x"}`, "fs_upload": `{"path":"/x","size":1}`} {
		a := w.do("POST", "/api/v1/calls", pat, fmt.Sprintf(`{"agent_id":"web-01","tool":%q,"args":%s}`, tool, args))
		if a.status != http.StatusBadRequest || !strings.Contains(a.body, "/api/v1/agents/{agent_id}/files") || !strings.Contains(a.body, "drover cp") {
			t.Errorf("%s: HTTP %d %s", tool, a.status, a.body)
		}
	}
	streams := map[string]string{}
	for _, tool := range decode[ToolList](t, w.do("GET", "/api/v1/tools", pat, "")).Tools {
		if tool.Stream != "" {
			streams[tool.Name] = tool.Stream
		}
	}
	if diff := cmp.Diff(map[string]string{"fs_download": "from_host", "fs_upload": "to_host"}, streams); diff != "" {
		t.Error(diff)
	}
}

func TestClockIsShown(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	if a := w.do("GET", "/api/v1/agents/web-01", pat, ""); strings.Contains(a.body, "clock") {
		t.Errorf("a clock that is right: %s", a.body)
	}
	epoch, _, err := w.db.NextEpoch(t.Context(), fleet.Claim{Agent: "web-01", Generation: 1, Instance: "i"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.db.UpdateFacts(t.Context(), "web-01", epoch, protocol.Facts{ClockAheadMS: -190_000}, nil); err != nil {
		t.Fatal(err)
	}
	if g := decode[AgentInfo](t, w.do("GET", "/api/v1/agents/web-01", pat, "")); g.ClockAheadMS != -190_000 {
		t.Errorf("%+v", g)
	}
}
