package mcpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// edgeName is this edge in the record.
const edgeName = "mcp"

// JSON-RPC codes beside the SDK's.
const (
	codeServer         = -32000
	codeSessionMissing = -32001
)

// rpcError is a Drover error as a JSON-RPC error: our code is in data.code, the reason, where
// there's one, in data.reason.
func rpcError(code int64, fe *fleet.Error) *jsonrpc.Error {
	e := &jsonrpc.Error{Code: code, Message: string(fe.Code) + ": " + fe.Message}
	var data json.RawMessage
	if fe.Reason != "" {
		data, _ = json.Marshal(map[string]string{"reason": fe.Reason}) // of text it's never an error
	}
	e.Data = withCode(data, fe.Code)
	return e
}

// hasCode tells that an error is ours.
func hasCode(data json.RawMessage) bool {
	var m struct{ Code *json.RawMessage }
	return json.Unmarshal(data, &m) == nil && m.Code != nil
}

// withCode adds code to an error's data, which keeps its other members.
func withCode(data json.RawMessage, code protocol.Code) json.RawMessage {
	m := map[string]json.RawMessage{}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &m); err != nil || m == nil {
			return data // not an object: it's not ours to change
		}
		if _, ok := m["code"]; ok {
			return data
		}
	}
	m["code"] = json.RawMessage(`"` + string(code) + `"`)
	out, err := json.Marshal(m)
	if err != nil {
		return data
	}
	return out
}

// codeOf is our code for an error of the SDK's.
func codeOf(rpc int64) protocol.Code {
	switch rpc {
	case jsonrpc.CodeMethodNotFound, mcp.CodeUnsupportedProtocolVersion, mcp.CodeMissingRequiredClientCapabilities:
		return protocol.CodeUnsupported
	case jsonrpc.CodeInternalError:
		return protocol.CodeInternal
	case codeSessionMissing:
		return protocol.CodeNotFound
	default:
		return protocol.CodeBadArgs
	}
}

// rpcBody is a JSON-RPC error response.
type rpcBody struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   *jsonrpc.Error  `json:"error"`
}

func encodeRPCError(id jsontext.Value, e *jsonrpc.Error) []byte {
	if len(id) == 0 {
		id = jsontext.Value("null")
	}
	b, err := json.Marshal(rpcBody{"2.0", json.RawMessage(id), e})
	if err != nil {
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal: Drover failed inside","data":{"code":"internal"}}}`)
	}
	return b
}

func writeRPCError(w http.ResponseWriter, status int, id jsontext.Value, e *jsonrpc.Error) {
	body := encodeRPCError(id, e)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// annotate puts an error of the SDK in our words, on its way through a server's middleware.
// A tool that isn't there is recorded like one that isn't granted, and reads like it.
func (a *API) annotate(req mcp.Request, method string, err error) error {
	var e *jsonrpc.Error
	if !errors.As(err, &e) {
		a.log.Debug("MCP's library refused a request", "method", text.Quote(method, 64), "err", err)
		e = &jsonrpc.Error{}
	}
	call, ok := req.(*mcp.CallToolRequest)
	if ok && method == methodCall && e.Code == jsonrpc.CodeInvalidParams && e.Data == nil && strings.HasPrefix(e.Message, "unknown tool ") {
		who, _ := principalOf(call.Extra)
		e = a.unknownTool()
		a.dispatch.Refuse(who, fleet.Refusal{
			Client: clientOf(call), Edge: edgeName, Tool: call.Params.Name, Agent: namedAgent(jsontext.Value(call.Params.Arguments)),
			Code: protocol.CodeUnknownTool, Message: e.Message,
		})
		return e
	}
	e, _ = reworded(e)
	return e
}

// unknownTool is the one answer to a tool that doesn't exist or isn't granted.
func (a *API) unknownTool() *jsonrpc.Error {
	return rpcError(jsonrpc.CodeInvalidParams, fleet.Errorf(protocol.CodeUnknownTool,
		"no tool of that name is granted to this credential; list the tools to see which are"))
}

// finish ends a request's stream. What the SDK refused becomes a JSON-RPC error with our
// code, and is recorded if it was a call.
func (a *API) finish(s *stream, r *http.Request, who fleet.Principal, msgs []message) {
	status, body, committed := s.end()
	if status == 0 {
		return
	}
	var id jsontext.Value
	if len(msgs) == 1 && goodID(msgs[0].id) {
		id = msgs[0].id
	}
	e, ours := sdkError(&status, body, &id)
	if !ours {
		for _, m := range msgs {
			if m.method == methodCall {
				a.dispatch.Refuse(who, fleet.Refusal{
					Client: clientName(nil, r.Header), Edge: edgeName, Tool: m.tool, Code: codeOf(e.Code), Message: text.Line(e.Message, 300),
				})
			}
		}
	}
	answer := encodeRPCError(id, e)
	if committed { // the status is out already: the error is the stream's last event
		_, _ = fmt.Fprintf(s.w, "event: message\ndata: %s\n\n", answer)
		_ = s.rc.Flush()
		return
	}
	maps.Copy(s.w.Header(), s.latest)
	s.w.Header().Del("Content-Length")
	s.w.Header().Set("Content-Type", "application/json")
	s.w.WriteHeader(status)
	_, _ = s.w.Write(answer)
}

// sdkError reads the SDK's refusal: a JSON-RPC error or a line of text. ours tells that it
// has our code, and was recorded where it was made.
func sdkError(status *int, body []byte, id *jsontext.Value) (e *jsonrpc.Error, ours bool) {
	var got rpcBody
	if json.Unmarshal(body, &got) == nil && got.Error != nil {
		if len(got.ID) > 0 && string(got.ID) != "null" {
			*id = jsontext.Value(got.ID)
		}
		return reworded(got.Error)
	}
	switch *status {
	case http.StatusNotFound, http.StatusForbidden:
		// Another principal's session looks like none, and a client whose token was renewed
		// begins again.
		*status = http.StatusNotFound
		e = rpcError(codeSessionMissing, noSession())
	case http.StatusMethodNotAllowed:
		e = rpcError(codeServer, fleet.Errorf(protocol.CodeUnsupported, "this method needs a session (Mcp-Session-Id); messages are sent by POST"))
	case http.StatusRequestEntityTooLarge:
		e = rpcError(codeServer, fleet.Errorf(protocol.CodeTooLarge, "the body is larger than a request may be"))
	case http.StatusInternalServerError:
		e = rpcError(jsonrpc.CodeInternalError, fleet.Errorf(protocol.CodeInternal, insideMessage))
	default: // check has found what clients get wrong
		e, _ = reworded(&jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest})
	}
	return e, false
}

// inOurWords is an event in which the SDK answers with an error, which it writes whole, in our
// words; nil where it's anything else.
func inOurWords(event []byte) []byte {
	before, data, ok := bytes.Cut(event, []byte("data: "))
	if !ok || !bytes.Contains(data, []byte(`"error":`)) {
		return nil
	}
	var got rpcBody
	if json.Unmarshal(data, &got) != nil || got.Error == nil {
		return nil
	}
	e, ours := reworded(got.Error)
	if ours {
		return nil
	}
	return slices.Concat(before, []byte("data: "), encodeRPCError(jsontext.Value(got.ID), e), []byte("\n\n"))
}

func noSession() *fleet.Error {
	return fleet.Errorf(protocol.CodeNotFound, "there is no such session here; begin again with initialize")
}
