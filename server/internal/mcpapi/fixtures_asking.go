//go:build fixtures

package mcpapi

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// askingFixtures ask the client while their call is open, as protocol
// revisions before 2026-07-28 do it.
func askingFixtures() []fixture {
	return []fixture{
		{"test_sampling", "Asks the client's model.", `{"type":"object","properties":{"prompt":{"type":"string","description":"What to ask."}},"required":["prompt"]}`,
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var in struct {
					Prompt string `json:"prompt"`
				}
				if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
					return nil, err
				}
				got, err := req.Session.CreateMessage(ctx, askModel(in.Prompt))
				if err != nil {
					return nil, err
				}
				text, _ := got.Content.(*mcp.TextContent)
				if text == nil {
					return nil, fmt.Errorf("the client's model answered with %T", got.Content)
				}
				return fixtureText("LLM response: " + text.Text), nil
			}},
		{"test_elicitation", "Asks the user for a name.", `{"type":"object","properties":{"message":{"type":"string","description":"What to ask."}},"required":["message"]}`,
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var in struct {
					Message string `json:"message"`
				}
				if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
					return nil, err
				}
				return elicit(ctx, req, askFor(in.Message, "username", "string"))
			}},
		{"test_elicitation_sep1034_defaults", "Asks the user, with a default of every kind.", "",
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return elicit(ctx, req, &mcp.ElicitParams{Message: "Please review the defaults", RequestedSchema: json.RawMessage(fixtureDefaults)})
			}},
		{"test_elicitation_sep1330_enums", "Asks the user, with a choice of every kind.", "",
			func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return elicit(ctx, req, &mcp.ElicitParams{Message: "Please choose", RequestedSchema: json.RawMessage(fixtureEnums)})
			}},
	}
}

func elicit(ctx context.Context, req *mcp.CallToolRequest, ask *mcp.ElicitParams) (*mcp.CallToolResult, error) {
	got, err := req.Session.Elicit(ctx, ask)
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(got.Content)
	if err != nil {
		return nil, err
	}
	return fixtureText(fmt.Sprintf("Elicitation completed: action=%s, content=%s", got.Action, content)), nil
}

// roundTripFixtures end their call with a question and finish when the client
// calls again with the answer, as protocol revision 2026-07-28 does it.
func roundTripFixtures() []fixture {
	name := func() *mcp.ElicitParams { return askFor("What is your name?", "name", "string") }
	return []fixture{
		{"test_input_required_result_elicitation", "Asks for a name.", "", round(func(in mcp.InputResponseMap) *mcp.CallToolResult {
			if said, _ := accepted(in, "user_name")["name"].(string); said != "" {
				return fixtureText("Hello, " + said + "!")
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user_name": name()}}
		})},
		{"test_input_required_result_sampling", "Asks the client's model.", "", round(func(in mcp.InputResponseMap) *mcp.CallToolResult {
			if text, ok := sampled(in, "capital_question"); ok {
				return fixtureText("Sampling response: " + text)
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"capital_question": askModel("What is the capital of France?")}}
		})},
		{"test_input_required_result_list_roots", "Asks for the client's roots.", "", round(func(in mcp.InputResponseMap) *mcp.CallToolResult {
			if n, ok := rooted(in, "client_roots"); ok {
				return fixtureText(fmt.Sprintf("The client exposes %d roots", n))
			}
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}}
		})},
		{"test_input_required_result_multiple_inputs", "Asks three things at once.", "", round(func(in mcp.InputResponseMap) *mcp.CallToolResult {
			said, _ := accepted(in, "user_name")["name"].(string)
			greeting, greeted := sampled(in, "greeting")
			if n, ok := rooted(in, "client_roots"); ok && greeted && said != "" {
				return fixtureText(fmt.Sprintf("%s %s, %d roots", greeting, said, n))
			}
			return &mcp.CallToolResult{RequestState: sealState("multiple"), InputRequests: mcp.InputRequestMap{
				"user_name": name(), "greeting": askModel("Generate a greeting"), "client_roots": &mcp.ListRootsParams{},
			}}
		})},
		{"test_input_required_result_request_state", "Asks, and checks the state that comes back.", "", confirmFixture},
		{"test_input_required_result_tampered_state", "Asks, and refuses a state that was changed.", "", confirmFixture},
		{"test_input_required_result_multi_round", "Asks twice, one after the other.", "", multiRoundFixture},
		{"test_input_required_result_capabilities", "Asks only what the client can answer.", "", capabilitiesFixture},
	}
}

// round makes a tool of a function from the client's answers to a result.
func round(f func(mcp.InputResponseMap) *mcp.CallToolResult) mcp.ToolHandler {
	return func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return f(req.Params.InputResponses), nil
	}
}

func confirmFixture(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	said := accepted(req.Params.InputResponses, "confirm")
	if said == nil && req.Params.RequestState == "" {
		return &mcp.CallToolResult{RequestState: sealState("confirm"), InputRequests: mcp.InputRequestMap{
			"confirm": askFor("Please confirm", "ok", "boolean"),
		}}, nil
	}
	if _, err := openState(req.Params.RequestState); err != nil {
		return nil, err
	}
	return fixtureText("state-ok: the state came back and the answer was accepted"), nil
}

func multiRoundFixture(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if req.Params.RequestState == "" {
		return &mcp.CallToolResult{RequestState: sealState("1"), InputRequests: mcp.InputRequestMap{
			"step1": askFor("Step 1: What is your name?", "name", "string"),
		}}, nil
	}
	state, err := openState(req.Params.RequestState)
	if err != nil {
		return nil, err
	}
	if state == "1" {
		name, _ := accepted(req.Params.InputResponses, "step1")["name"].(string)
		return &mcp.CallToolResult{RequestState: sealState("2 " + name), InputRequests: mcp.InputRequestMap{
			"step2": askFor("Step 2: What is your favourite colour?", "color", "string"),
		}}, nil
	}
	color, _ := accepted(req.Params.InputResponses, "step2")["color"].(string)
	return fixtureText(strings.TrimPrefix(state, "2 ") + " likes " + color), nil
}

func capabilitiesFixture(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if len(req.Params.InputResponses) > 0 {
		return fixtureText("The client answered"), nil
	}
	ask := mcp.InputRequestMap{}
	if caps := req.ClientCapabilities(); caps != nil {
		if caps.Elicitation != nil {
			ask["user_name"] = askFor("What is your name?", "name", "string")
		}
		if caps.Sampling != nil {
			ask["greeting"] = askModel("Generate a short greeting")
		}
		if caps.RootsV2 != nil {
			ask["client_roots"] = &mcp.ListRootsParams{}
		}
	}
	if len(ask) == 0 {
		return fixtureText("The client can answer nothing"), nil
	}
	return &mcp.CallToolResult{InputRequests: ask}, nil
}

func askModel(text string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}}}
}

// askFor asks the user for one required member of the given JSON type.
func askFor(message, member, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: map[string]any{
		"type":       "object",
		"properties": map[string]any{member: map[string]any{"type": kind}},
		"required":   []string{member},
	}}
}

// accepted returns what the user gave, or nil if there's no accepted answer.
func accepted(in mcp.InputResponseMap, key string) map[string]any {
	if got, _ := in[key].(*mcp.ElicitResult); got != nil && got.Action == "accept" {
		return got.Content
	}
	return nil
}

// sampled returns the first text of what the client's model said.
func sampled(in mcp.InputResponseMap, key string) (string, bool) {
	got, _ := in[key].(*mcp.CreateMessageWithToolsResult)
	if got == nil {
		return "", false
	}
	for _, c := range got.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			return text.Text, true
		}
	}
	return "", true
}

func rooted(in mcp.InputResponseMap, key string) (int, bool) {
	got, _ := in[key].(*mcp.ListRootsResult)
	if got == nil {
		return 0, false
	}
	return len(got.Roots), true
}

// sealState authenticates a state that travels through the client. The key is
// no secret: the fixtures show how a changed state is refused, nothing more.
func sealState(state string) string { return stateMAC(state) + " " + state }

func openState(sealed string) (string, error) {
	mac, state, _ := strings.Cut(sealed, " ")
	if !hmac.Equal([]byte(mac), []byte(stateMAC(state))) {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState was changed on its way"}
	}
	return state, nil
}

func stateMAC(state string) string {
	mac := hmac.New(sha256.New, []byte("drover fixtures"))
	mac.Write([]byte(state))
	return hex.EncodeToString(mac.Sum(nil))
}

const fixtureDefaults = `{
  "type": "object",
  "properties": {
    "name": {"type": "string", "description": "User name", "default": "John Doe"},
    "age": {"type": "integer", "description": "User age", "default": 30},
    "score": {"type": "number", "description": "User score", "default": 95.5},
    "status": {"type": "string", "description": "User status", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "description": "Whether the user is verified", "default": true}
  },
  "required": []
}`

const fixtureEnums = `{
  "type": "object",
  "properties": {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": [
      {"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}, {"const": "value3", "title": "Third Option"}]},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
    "titledMulti": {"type": "array", "items": {"anyOf": [
      {"const": "value1", "title": "First Choice"}, {"const": "value2", "title": "Second Choice"}, {"const": "value3", "title": "Third Choice"}]}}
  },
  "required": []
}`
