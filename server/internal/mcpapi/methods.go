package mcpapi

import (
	"errors"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol/text"
)

// method is what's known of a method before the SDK has it.
type method struct {
	params       any // what the SDK decodes its params into
	notification bool
	needs        bool // params may not be left out
}

// Params of methods that MCP gives up with 2026-07-28, and the SDK with them.
type (
	metaParams struct {
		Meta map[string]any `json:"_meta"`
	}
	levelParams struct {
		Meta  map[string]any `json:"_meta"`
		Level string         `json:"level"`
	}
)

// methodOf finds a method that the SDK serves, in whatever revision, but tools/call: readCall reads
// that one.
func methodOf(name string) (m method, ok bool) {
	switch name {
	case methodInitialize:
		return method{params: new(mcp.InitializeParams), needs: true}, true
	case "ping":
		return method{params: new(mcp.PingParams)}, true
	case "server/discover":
		return method{params: new(mcp.DiscoverParams)}, true
	case methodListen:
		return method{params: new(mcp.SubscriptionsListenParams), needs: true}, true
	case "tools/list":
		return method{params: new(mcp.ListToolsParams)}, true
	case "prompts/list":
		return method{params: new(mcp.ListPromptsParams)}, true
	case "prompts/get":
		return method{params: new(mcp.GetPromptParams), needs: true}, true
	case "resources/list":
		return method{params: new(mcp.ListResourcesParams)}, true
	case "resources/templates/list":
		return method{params: new(mcp.ListResourceTemplatesParams)}, true
	case "resources/read":
		return method{params: new(mcp.ReadResourceParams), needs: true}, true
	case "resources/subscribe":
		return method{params: new(mcp.SubscribeParams), needs: true}, true
	case "resources/unsubscribe":
		return method{params: new(mcp.UnsubscribeParams), needs: true}, true
	case "completion/complete":
		return method{params: new(mcp.CompleteParams), needs: true}, true
	case "logging/setLevel":
		return method{params: new(levelParams), needs: true}, true
	case "notifications/initialized":
		return method{params: new(mcp.InitializedParams), notification: true}, true
	case methodCancelled:
		return method{params: new(mcp.CancelledParams), notification: true}, true
	case methodProgress:
		return method{params: new(mcp.ProgressNotificationParams), notification: true, needs: true}, true
	case "notifications/roots/list_changed":
		return method{params: new(metaParams), notification: true}, true
	default:
		return method{}, false
	}
}

// readRest reads what's left of an envelope once its members are known.
func (m *message) readRest(params jsontext.Value, response bool) *refusal {
	none := m.id.Kind() == 'n'
	switch {
	case string(m.tag) != `"2.0"`:
		return badRequest(`a JSON-RPC message has "jsonrpc": "2.0"`)
	case !m.named && !response:
		return badRequest("a JSON-RPC message has a method, or is a response with a result or an error")
	case !m.named && (m.id == nil || none):
		return badRequest("a response has the id of the request that it answers")
	case !m.named:
		return nil
	case none && strings.HasPrefix(m.method, "notifications/"):
		m.id = nil // some clients write it out that a notification has none
	case none:
		return badRequest("the id of a request may not be null; a notification has none")
	}
	if m.method == methodCall {
		if m.id == nil {
			return badRequest("tools/call needs an id, for its answer; nothing was started")
		}
		return m.readCall(params)
	}
	return m.readParams(params)
}

// readParams reads the params of a method that isn't tools/call: the SDK would put what doesn't
// fit in terms of Go.
func (m *message) readParams(params jsontext.Value) *refusal {
	known, ok := methodOf(m.method)
	if m.unknown = !ok; m.unknown {
		return nil // check answers: it differs from revision to revision
	}
	absent := len(params) == 0 || params.Kind() == 'n'
	switch {
	case known.notification && m.id != nil:
		return badRequest(m.method + " is a notification: it has no id")
	case !known.notification && m.id == nil:
		return badRequest(m.method + " needs an id, for its answer")
	case absent && known.needs:
		return badParams(m.method + " needs params: an object")
	case absent:
		return nil
	case params.Kind() != '{':
		return badParams("the params of " + m.method + " must be an object")
	}
	if err := json.Unmarshal(params, known.params); err != nil {
		return badParams(unfit(m.method, err))
	}
	var bad *refusal
	_ = members(params, func(name string, v jsontext.Value) *refusal {
		switch {
		case name == "_meta" && v.Kind() == '{':
			bad = m.readMeta(v)
		case name == "requestId" && m.method == methodCancelled && !whole(v):
			bad = badParams("requestId is a text or a whole number: no request has this one, and one of another id isn't to be cancelled")
		case name == progressToken && m.method == methodProgress && !whole(v):
			bad = badParams("progressToken is a text or a whole number")
		}
		return bad
	})
	return bad
}

const progressToken = "progressToken"

// readMeta reads what Drover has to know of a request's _meta, whatever the method. A token for
// progress is what MCP says it is: notifications with another one couldn't be told from those of
// the request whose it is.
func (m *message) readMeta(meta jsontext.Value) *refusal {
	return members(meta, func(name string, v jsontext.Value) *refusal {
		switch {
		case name == mcp.MetaKeyProtocolVersion:
			m.version = stringOf(v)
		case name == progressToken && v.Kind() != 'n' && !whole(v):
			return badParams("_meta.progressToken is a text or a whole number; leave it out where no progress is wanted. Nothing was started")
		}
		return nil
	})
}

// whole tells that a value is what JSON-RPC has as an id, and MCP as a token: a text or a number
// without a fraction, which the SDK would cut off.
func whole(v jsontext.Value) bool {
	return v.Kind() == '"' || v.Kind() == '0' && !fractional(v)
}

// unfit says where params aren't what their method takes, and what should be there.
func unfit(method string, err error) string {
	var se *json.SemanticError
	if !errors.As(err, &se) {
		return "the params of " + method + " aren't what MCP's specification says"
	}
	where := "the params of " + method + ": " + text.Quote(strings.TrimPrefix(string(se.JSONPointer), "/"), 64)
	if kind := jsonKind(se.GoType); kind != "" && se.Err == nil {
		return where + " must be " + kind
	}
	return where + " isn't what MCP's specification says"
}

// jsonKind is what a Go type is in JSON; "" where that's more than a word.
func jsonKind(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64, reflect.Int, reflect.Int64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	default:
		return ""
	}
}

// reworded is an error of the SDK in Drover's words: the SDK's are for who reads its source. What
// has our code already is ours, and stays. The rest of the data stays in any case.
func reworded(e *jsonrpc.Error) (_ *jsonrpc.Error, ours bool) {
	if hasCode(e.Data) {
		return e, true
	}
	out := &jsonrpc.Error{Code: e.Code, Data: withCode(e.Data, codeOf(e.Code))}
	var says string
	switch e.Code {
	case jsonrpc.CodeMethodNotFound:
		says = "this method isn't served in the request's revision of MCP; tools/list and tools/call are in every one"
	case jsonrpc.CodeInvalidParams:
		says = "the params aren't what MCP's specification of this method says, or name what isn't here (Drover has tools alone); from 2026-07-28 on, _meta has " +
			mcp.MetaKeyProtocolVersion + " and " + mcp.MetaKeyClientCapabilities
	case jsonrpc.CodeInternalError:
		says = insideMessage
	case mcp.CodeHeaderMismatch:
		says = "the headers Mcp-Protocol-Version, Mcp-Method and (of tools/call, resources/read and prompts/get) Mcp-Name must be there and say what the body says"
	case mcp.CodeUnsupportedProtocolVersion:
		says = "this revision of MCP isn't spoken here; data.supported lists those that are"
	case mcp.CodeMissingRequiredClientCapabilities:
		says = "the client doesn't say that it has the capabilities in data.requiredCapabilities"
	default:
		if out.Code == 0 { // the SDK gave none
			out.Code = jsonrpc.CodeInvalidRequest
		}
		says = "the request doesn't fit here: in a session initialize comes first and once, and an id may not be that of a request that's still open"
	}
	out.Message = string(codeOf(out.Code)) + ": " + says
	return out, false
}

const insideMessage = "Drover failed inside; the server's log has the cause"
