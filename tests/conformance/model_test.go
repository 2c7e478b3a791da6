package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// model stands in for the Messages API: it answers POST /v1/messages so that a
// client calls one tool with fixed arguments and then ends. Where the client
// loads tools on demand, the model first searches for its tool, as a real one
// would.
type model struct {
	tool string
	args map[string]any

	mu    sync.Mutex
	heard []heard
}

// heard is what one request told the model.
type heard struct {
	system  string                     // the system prompt and every message, as JSON text
	schemas map[string]json.RawMessage // the input schema of each tool that was offered
	results map[string]toolResult      // the tool results so far, by the id of their tool use
}

type toolResult struct {
	text    string
	isError bool
}

// The ids of the model's two tool uses.
const (
	searchUse = "toolu_search"
	callUse   = "toolu_call"
)

// serve starts the model on loopback and returns its base URL.
func (m *model) serve(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	return srv.URL
}

// all returns everything heard so far.
func (m *model) all() []heard {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]heard(nil), m.heard...)
}

// result returns the result of the model's call, if it came back.
func (m *model) result() (toolResult, bool) {
	for _, h := range m.all() {
		if r, ok := h.results[callUse]; ok {
			return r, true
		}
	}
	return toolResult{}, false
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 32<<20))
	if err != nil {
		return // the client is gone
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/messages" {
		http.Error(w, `{"type":"error","error":{"type":"not_found_error","message":"not scripted"}}`, http.StatusNotFound)
		return
	}
	h, err := hear(body)
	if err != nil {
		http.Error(w, fmt.Sprintf(`{"type":"error","error":{"type":"invalid_request_error","message":%q}}`, err), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	m.heard = append(m.heard, h)
	m.mu.Unlock()
	m.answer(w, h)
}

// answer decides by what came back already, so that repeated and side requests
// of the client don't confuse it.
func (m *model) answer(w io.Writer, h heard) {
	_, searched := h.results[searchUse]
	_, called := h.results[callUse]
	switch {
	case called || len(h.schemas) == 0:
		say(w, "The work is done.")
	case h.schemas[m.tool] != nil:
		use(w, callUse, m.tool, m.args)
	case h.schemas["ToolSearch"] != nil && !searched:
		use(w, searchUse, "ToolSearch", map[string]any{"query": "select:" + m.tool})
	default:
		say(w, "There is no tool "+m.tool+".")
	}
}

// hear takes from a request what the tests look at.
func hear(body []byte) (heard, error) {
	var req struct {
		System json.RawMessage
		Tools  []struct {
			Name        string
			InputSchema json.RawMessage `json:"input_schema"`
		}
		Messages []struct {
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return heard{}, err
	}
	h := heard{system: string(req.System), schemas: map[string]json.RawMessage{}, results: map[string]toolResult{}}
	for _, tool := range req.Tools {
		h.schemas[tool.Name] = tool.InputSchema
	}
	for _, message := range req.Messages {
		h.system += string(message.Content)
		var blocks []struct {
			Type      string
			ToolUseID string `json:"tool_use_id"`
			IsError   bool   `json:"is_error"`
			Content   json.RawMessage
		}
		if json.Unmarshal(message.Content, &blocks) != nil {
			continue // a message may be a plain string
		}
		for _, b := range blocks {
			if b.Type == "tool_result" {
				h.results[b.ToolUseID] = toolResult{blockText(b.Content), b.IsError}
			}
		}
	}
	return h, nil
}

// blockText joins the text of a tool result's content: a string, or blocks.
func blockText(content json.RawMessage) string {
	var plain string
	if json.Unmarshal(content, &plain) == nil {
		return plain
	}
	var blocks []struct{ Type, Text string }
	if json.Unmarshal(content, &blocks) != nil {
		return string(content)
	}
	var text strings.Builder
	for _, b := range blocks {
		text.WriteString(b.Text)
	}
	return text.String()
}

func say(w io.Writer, text string) {
	stream(w, "end_turn", map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": text})
}

func use(w io.Writer, id, tool string, args map[string]any) {
	input, err := json.Marshal(args)
	if err != nil {
		panic(err) // the arguments are a test's own
	}
	stream(w, "tool_use",
		map[string]any{"type": "tool_use", "id": id, "name": tool, "input": map[string]any{}},
		map[string]any{"type": "input_json_delta", "partial_json": string(input)})
}

// stream writes a message of one block as server-sent events.
func stream(w io.Writer, stop string, block, delta map[string]any) {
	if rw, ok := w.(http.ResponseWriter); ok {
		rw.Header().Set("Content-Type", "text/event-stream")
	}
	usage := map[string]any{"input_tokens": 1, "output_tokens": 1}
	for _, e := range []struct {
		name string
		data map[string]any
	}{
		{"message_start", map[string]any{"message": map[string]any{
			"id": "msg_scripted", "type": "message", "role": "assistant", "model": "scripted", "content": []any{},
			"stop_reason": nil, "stop_sequence": nil, "usage": usage,
		}}},
		{"content_block_start", map[string]any{"index": 0, "content_block": block}},
		{"content_block_delta", map[string]any{"index": 0, "delta": delta}},
		{"content_block_stop", map[string]any{"index": 0}},
		{"message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": usage}},
		{"message_stop", map[string]any{}},
	} {
		e.data["type"] = e.name
		data, err := json.Marshal(e.data)
		if err != nil {
			panic(err) // nothing but the literals above
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.name, data)
	}
}

// TestModel plays a client's three requests, with a tool that is loaded on
// demand.
func TestModel(t *testing.T) {
	m := &model{tool: "mcp__x__run", args: map[string]any{"agent_id": "web-01"}}
	url := m.serve(t)
	ask := func(body string) string {
		t.Helper()
		resp, err := http.Post(url+"/v1/messages?beta=true", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const (
		search = `{"name":"ToolSearch","input_schema":{}}`
		run    = `{"name":"mcp__x__run","input_schema":{"required":["agent_id"]}}`
		user   = `{"role":"user","content":"go"}`
	)
	found := `{"role":"user","content":[{"type":"tool_result","tool_use_id":"` + searchUse + `","content":[{"type":"tool_reference","tool_name":"mcp__x__run"}]}]}`
	done := `{"role":"user","content":[{"type":"tool_result","tool_use_id":"` + callUse + `","content":[{"type":"text","text":"[web-01]"}]}]}`
	for _, step := range []struct{ tools, messages, want string }{
		{``, user, "The work is done."},
		{search, user, `"name":"ToolSearch"`},
		{search, user + "," + found, "There is no tool mcp__x__run."},
		{search + "," + run, user + "," + found, `"name":"mcp__x__run"`},
		{search + "," + run, user + "," + found + "," + done, "The work is done."},
	} {
		if got := ask(`{"system":"s","tools":[` + step.tools + `],"messages":[` + step.messages + `]}`); !strings.Contains(got, step.want) {
			t.Errorf("tools [%s]: the model said %s, want %s in it", step.tools, got, step.want)
		}
	}
	if got, ok := m.result(); !ok || got != (toolResult{text: "[web-01]"}) {
		t.Errorf("the call's result is %+v, %v", got, ok)
	}
}
