package mcpapi

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func who(id string) fleet.Principal {
	return fleet.Principal{ID: id, Kind: fleet.KindPAT, Name: "test"}
}

func allTools(t *testing.T) []*mcp.Tool {
	t.Helper()
	a := New(Config{Log: testAPI().log, Version: "test"})
	var out []*mcp.Tool
	for _, name := range slices.Sorted(maps.Keys(a.tools)) {
		out = append(out, a.tools[name].tool)
	}
	for _, own := range a.serverTools {
		out = append(out, own.tool)
	}
	if len(out) < 13 {
		t.Fatalf("only %d tools", len(out))
	}
	return out
}

// What hosted and other clients refuse a whole list for.
func TestToolsAreAcceptable(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
	for _, tool := range allTools(t) {
		t.Run(tool.Name, func(t *testing.T) {
			if !name.MatchString(tool.Name) || tool.Title == "" || tool.Annotations.Title != tool.Title {
				t.Error("the name or the title")
			}
			if n := len(tool.Description); n < 40 || n > 2048 {
				t.Errorf("a description of %d bytes", n)
			}
			b, err := json.Marshal(tool.Annotations)
			if err != nil {
				t.Fatal(err)
			}
			for _, hint := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
				if !strings.Contains(string(b), `"`+hint+`"`) {
					t.Errorf("%s isn't explicit", hint)
				}
			}
			for what, schema := range map[string]any{"input": tool.InputSchema, "output": tool.OutputSchema} {
				if schema != nil {
					checkSchema(t, what, schema.(json.RawMessage))
				}
			}
		})
	}
}

func checkSchema(t *testing.T, what string, raw json.RawMessage) {
	t.Helper()
	if len(raw) > 16_384 {
		t.Errorf("the %s schema has %d bytes", what, len(raw))
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatalf("the %s schema: %v", what, err)
	}
	if s.Type != "object" || s.AnyOf != nil || s.OneOf != nil || s.AllOf != nil || s.Ref != "" {
		t.Errorf("the %s schema's root: %s", what, raw)
	}
	if strings.Contains(string(raw), `"null"`) || strings.Contains(string(raw), "x-mcp-header") {
		t.Errorf("the %s schema has null or headers: %s", what, raw)
	}
	if _, err := s.Resolve(nil); err != nil {
		t.Errorf("the %s schema: %v", what, err)
	}
	for name, p := range s.Properties {
		if what == "input" && p.Description == "" {
			t.Errorf("%s has no description", name)
		}
	}
}

func TestForwardedToolsNeedAnAgent(t *testing.T) {
	for _, d := range capability.All() {
		var s jsonschema.Schema
		if err := json.Unmarshal(toolOf(d).InputSchema.(json.RawMessage), &s); err != nil {
			t.Fatal(err)
		}
		p := s.Properties[agentMember]
		if p == nil || p.Type != "string" || len(s.Required) == 0 || s.Required[0] != agentMember || p.Default != nil {
			t.Errorf("%s: agent_id %+v, required %v", d.Name, p, s.Required)
		}
		q := s.Properties[queueMember]
		if q == nil || q.Type != "integer" || q.Default != nil || *q.Minimum != 1 || *q.Maximum != 604800 || slices.Contains(s.Required, queueMember) {
			t.Errorf("%s: queue_for_seconds %+v, required %v", d.Name, q, s.Required)
		}
		if d.In.Properties[agentMember] != nil || d.In.Properties[queueMember] != nil {
			t.Errorf("%s: the definition was changed, or has a member of Drover's", d.Name)
		}
		text := d.Render != capability.RenderJSON
		if (toolOf(d).OutputSchema == nil) != text {
			t.Errorf("%s: an output schema, though it answers in text, or none", d.Name)
		}
	}
}

// A tool whose arguments have a member of Drover's own can't exist: splice would take it away.
func TestReservedMembers(t *testing.T) {
	for _, name := range []string{agentMember, queueMember} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a tool with an argument %s was made", name)
				}
			}()
			withOwn("x", &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{name: {Type: "string"}}})
		}()
	}
}

// grants is a Fleet of these agents that grants these tools.
type grants struct {
	tools  []*capability.Definition
	agents []dispatch.AgentView
}

func (g grants) Agents(fleet.Principal) []dispatch.AgentView { return g.agents }
func (g grants) Agent(fleet.Principal, string, string) (dispatch.AgentView, error) {
	return g.agents[0], nil
}

func (g grants) OfflineWhy() string { return "" }

func (g grants) Tools(fleet.Principal) []*capability.Definition { return g.tools }

// What moves a file's bytes beside the call isn't offered here, however it's granted.
func TestStreamingToolsAreNotListed(t *testing.T) {
	up, down := *capability.FSWrite.Definition, *capability.FSRead.Definition
	up.Name, up.Stream = "fs_up", capability.ToHost
	down.Name, down.Stream = "fs_down", capability.FromHost
	defs := []*capability.Definition{&up, capability.FSStat.Definition, &down}
	a := New(Config{Log: testAPI().log, Version: "test", Fleet: grants{tools: defs}})
	a.tools = a.forwardedTools(defs)
	if got := a.toolsFor(who("p")); len(got) != 1 || got[0] != "fs_stat" {
		t.Errorf("listed: %v", got)
	}
	one := a.servers.of("p")
	one.sync(a, who("p"))
	if len(a.tools) != 1 {
		t.Errorf("%d tools were made", len(a.tools))
	}
}

// A clock that is off by more than a minute is told wherever agents are.
func TestClockIsTold(t *testing.T) {
	agent := func(id string, ahead int64) dispatch.AgentView {
		return dispatch.AgentView{Online: true, Agent: &fleet.Agent{ID: fleet.AgentID(id), Facts: protocol.Facts{ClockAheadMS: ahead}}}
	}
	for ahead, want := range map[int64]string{0: "", 60_000: "", -60_000: "", 190_000: "3m10s ahead of", -7_200_000: "2h0m0s behind"} {
		a := New(Config{Log: testAPI().log, Fleet: grants{agents: []dispatch.AgentView{agent("off", ahead), agent("right", 0)}}})
		by := use{who: who("p")}
		list, err := a.listAgents(t.Context(), by, listIn{})
		if err != nil {
			t.Fatal(err)
		}
		one, err := a.selectAgent(t.Context(), by, selectIn{AgentID: "off"})
		if err != nil {
			t.Fatal(err)
		}
		all, err := a.overview(t.Context(), by, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		seconds, clocks := int64(0), []clock{}
		if want != "" {
			seconds = ahead / 1000
			clocks = append(clocks, clock{"off", seconds})
		}
		rows := list.(listOut).Agents
		if rows[0].ClockAhead != seconds || rows[1].ClockAhead != 0 || !slices.Equal(all.(overviewOut).Clocks, clocks) {
			t.Errorf("%d ms: %+v, %+v", ahead, rows, all)
		}
		if note := one.(selectOut).Note; strings.Contains(note, "clock") != (want != "") || !strings.Contains(note, want) {
			t.Errorf("%d ms: %q", ahead, note)
		}
	}
}

func TestInstructions(t *testing.T) {
	if n := len(instructions); n > 2048 {
		t.Errorf("%d bytes", n)
	}
	for _, word := range []string{"agent_id", "list_agents", "ask", "call_result", "never", "host (agent_id) in every answer"} {
		if !strings.Contains(instructions, word) {
			t.Errorf("nothing of %q", word)
		}
	}
}

// A server tool's arguments are read as strictly as a forwarded one's.
func TestOwnArguments(t *testing.T) {
	for _, bad := range []string{`{"Limit":1}`, `{"limit":null}`, `{"limit":"1"}`, `{"agent_id":"a"}`, `{"limit":1,"limit":2}`, `[]`, `{"labels":{"a":1}}`} {
		var in listIn
		if err := readArguments("list_agents", []byte(bad), &in, []string{"query", "limit"}); err == nil || fleet.AsError(err).Code != "bad_args" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, good := range []string{``, `null`, `{}`, `{"limit":5,"labels":{"env":"prod"},"state":"online"}`} {
		var in listIn
		if err := readArguments("list_agents", []byte(good), &in, nil); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}
