//go:build fixtures

package mcpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// MCP's public conformance suite calls tools, prompts and resources by fixed
// names. They exist in builds with the tag "fixtures" alone, and reach the
// suite through the same router, authentication and era routing as the real
// tools; no fixture touches an agent.

const (
	fixtureAnySchema = `{"type":"object"}`
	// A PNG of one red pixel and a WAV file without samples.
	fixturePNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	fixtureWAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
)

// fixture is one tool of the suite. schema is its input schema; an empty one
// stands for an object of any members.
type fixture struct {
	name, doc, schema string
	call              mcp.ToolHandler
}

// fixtureOptions adds what the suite needs of the server's options: an empty
// completion, and subscriptions to resources, which the SDK keeps by itself.
func fixtureOptions(o *mcp.ServerOptions) {
	o.Capabilities = nil // the default has logging, which the suite uses
	o.CompletionHandler = func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
	}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
}

// addFixtures registers every tool, prompt and resource of the suite on s.
func addFixtures(s *mcp.Server) {
	for _, set := range [][]fixture{
		contentFixtures(), notifyingFixtures(), changeFixtures(s), askingFixtures(), roundTripFixtures(),
	} {
		for _, f := range set {
			addFixture(s, f)
		}
	}
	addFixtureResources(s)
	addFixturePrompts(s)
}

func addFixture(s *mcp.Server, f fixture) {
	schema := f.schema
	if schema == "" {
		schema = fixtureAnySchema
	}
	no := false
	s.AddTool(&mcp.Tool{
		Name:        f.name,
		Title:       "Conformance fixture " + f.name,
		Description: f.doc,
		InputSchema: json.RawMessage(schema),
		Annotations: &mcp.ToolAnnotations{
			Title: "Conformance fixture " + f.name, ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: &no, OpenWorldHint: &no,
		},
	}, f.call)
}

// contentFixtures answer at once, with each kind of content.
func contentFixtures() []fixture {
	return []fixture{
		{"test_simple_text", "Answers with text.", "", says("This is a simple text response for testing.")},
		{"test_image_content", "Answers with an image.", "", answers(fixtureImage())},
		{"test_audio_content", "Answers with audio.", "", answers(&mcp.AudioContent{Data: fixtureBytes(fixtureWAV), MIMEType: "audio/wav"})},
		{"test_embedded_resource", "Answers with an embedded resource.", "", answers(fixtureEmbedded("test://embedded-resource"))},
		{"test_multiple_content_types", "Answers with text, an image and a resource.", "", answers(
			&mcp.TextContent{Text: "Multiple content types test:"}, fixtureImage(), fixtureEmbedded("test://mixed-content-resource"))},
		{"test_error_handling", "Always fails.", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			r := fixtureText("This tool intentionally returns an error for testing")
			r.IsError = true
			return r, nil
		}},
		{"json_schema_2020_12_tool", "Has an input schema that uses JSON Schema 2020-12.", fixtureSchema2020, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return fixtureText(fmt.Sprintf("called with %s", req.Params.Arguments)), nil
		}},
		{"test_x_mcp_header", "Has an argument that clients mirror into a header.", fixtureHeaderSchema, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return fixtureText(fmt.Sprintf("called with %s", req.Params.Arguments)), nil
		}},
	}
}

// notifyingFixtures send notifications while they run.
func notifyingFixtures() []fixture {
	return []fixture{
		{"test_tool_with_logging", "Logs three messages.", "", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for _, text := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
				if err := fixtureLog(ctx, req, text); err != nil {
					return nil, err
				}
			}
			return fixtureText("Tool with logging executed successfully"), nil
		}},
		{"test_logging_tool", "Logs one message, which the client may not have asked for.", "", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := fixtureLog(ctx, req, "test_logging_tool executed"); err != nil {
				return nil, err
			}
			return fixtureText("Log attempted"), nil
		}},
		{"test_tool_with_progress", "Reports progress three times.", "", progressFixture},
		{"test_streaming_elicitation", "Answers on a stream that carries no request of the server's own.", "", says("Only results and notifications on this stream")},
		{"test_reconnection", "Closes its event stream, so that the client must come back for the answer.", "", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if req.Extra != nil && req.Extra.CloseSSEStream != nil {
				req.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
			}
			// The client has to find the stream closed before the answer is there.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return fixtureText("Reconnection test completed successfully"), nil
		}},
		{"test_missing_capability", "Requires that the client can sample.", "", missingCapabilityFixture},
	}
}

func progressFixture(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	token := req.Params.GetProgressToken()
	for _, done := range []float64{0, 50, 100} {
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: done, Total: 100, Message: fmt.Sprintf("Completed step %.0f of 100", done),
		})
		if err != nil {
			return nil, err
		}
	}
	return fixtureText(fmt.Sprint(token)), nil
}

func missingCapabilityFixture(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if caps := req.ClientCapabilities(); caps != nil && caps.Sampling != nil {
		return fixtureText("The client can sample"), nil
	}
	data, err := json.Marshal(mcp.MissingRequiredClientCapabilityData{
		RequiredCapabilities: &mcp.ClientCapabilities{Sampling: &mcp.SamplingCapabilities{}},
	})
	if err != nil {
		return nil, err
	}
	return nil, &jsonrpc.Error{
		Code: mcp.CodeMissingRequiredClientCapabilities, Message: "this tool requires the client capability sampling", Data: data,
	}
}

// changeFixtures change the lists of the server that they are called on, so
// that its subscribers hear of it. Adding what is there already is a change too.
func changeFixtures(s *mcp.Server) []fixture {
	return []fixture{
		{"test_trigger_tool_change", "Changes the list of tools.", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			addFixture(s, fixture{"test_transient_tool", "Was added by test_trigger_tool_change.", "", says("transient")})
			return fixtureText("The list of tools has changed"), nil
		}},
		{"test_trigger_prompt_change", "Changes the list of prompts.", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			s.AddPrompt(&mcp.Prompt{Name: "test_transient_prompt", Description: "Was added by test_trigger_prompt_change."}, promptOf(
				&mcp.PromptMessage{Role: "user", Content: &mcp.TextContent{Text: "transient"}}))
			return fixtureText("The list of prompts has changed"), nil
		}},
	}
}

// fixtureLog sends one log message at level info. It returns the context's
// error rather than the session's: a client that wants no logs is no failure.
func fixtureLog(ctx context.Context, req *mcp.CallToolRequest, text string) error {
	_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "fixtures", Data: text})
	return ctx.Err()
}

func fixtureText(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func says(text string) mcp.ToolHandler { return answers(&mcp.TextContent{Text: text}) }

func answers(content ...mcp.Content) mcp.ToolHandler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: content}, nil
	}
}

func fixtureImage() *mcp.ImageContent {
	return &mcp.ImageContent{Data: fixtureBytes(fixturePNG), MIMEType: "image/png"}
}

func fixtureEmbedded(uri string) *mcp.EmbeddedResource {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "This is an embedded resource content."}}
}

// fixtureBytes decodes a constant of this file, so it can't fail on input.
func fixtureBytes(b64 string) []byte {
	b, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		panic("a fixture's base64 is broken: " + err.Error())
	}
	return b
}

const fixtureHeaderSchema = `{
  "type": "object",
  "properties": {
    "region": {"type": "string", "description": "mirrored into Mcp-Param-Region", "x-mcp-header": "Region"},
    "level": {"type": "integer", "description": "not mirrored"}
  }
}`

const fixtureSchema2020 = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "$defs": {
    "address": {
      "$anchor": "addressDef",
      "type": "object",
      "properties": {"street": {"type": "string"}, "city": {"type": "string"}}
    }
  },
  "properties": {
    "name": {"type": "string"},
    "address": {"$ref": "#/$defs/address"},
    "contactMethod": {"type": "string", "enum": ["phone", "email"]},
    "phone": {"type": "string"},
    "email": {"type": "string"}
  },
  "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
  "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
  "then": {"required": ["phone"]},
  "else": {"required": ["email"]},
  "additionalProperties": false
}`
