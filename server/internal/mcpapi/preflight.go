package mcpapi

import (
	"bytes"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// maxBody bounds the body of a request, in bytes: the largest arguments, and what their
// envelope may take.
const maxBody = capability.MaxArgs + 256<<10

// What all of a body may have but the arguments of its calls. Only those may be large in
// earnest, and they alone go through the SDK as they came: it decodes the rest several times
// over, keeps that for as long as the call goes on, and what initialize says for as long as the
// session does.
const (
	maxAside       = 64 << 10 // bytes
	maxAsideValues = 2_000    // see strict.Values
)

// maxBatch bounds the messages of one batch, which only the oldest revisions have.
const maxBatch = 32

const (
	methodCall       = "tools/call"
	methodCancelled  = "notifications/cancelled"
	methodProgress   = "notifications/progress"
	methodInitialize = "initialize"
	methodListen     = "subscriptions/listen" // 2026-07-28
)

// message is what the envelope of a JSON-RPC message says, read strictly.
type message struct {
	id     jsontext.Value // raw; nil where there's none
	method string         // "" for a response
	tool   string         // of tools/call

	named   bool   // it has a method, and is no response
	unknown bool   // the SDK has no such method
	version string // that _meta says, from 2026-07-28 on

	// What the way of our own for tools/call reads, raw; nil where there's none.
	tag, args, meta jsontext.Value
	more            bool // it has members that this way doesn't know, or is one of a batch
	batch           bool
}

// refusal is a body that goes no further.
type refusal struct {
	status int   // HTTP
	rpc    int64 // JSON-RPC
	err    *fleet.Error
	// What could be read, for the answer and the record: nothing here was checked.
	id          jsontext.Value
	tool, agent string
	batch       bool // it's of one message of a batch
}

// preflight reads a whole body strictly, before the SDK, which takes the last of two
// equal names and ignores what it doesn't know. It returns the messages: several for a
// batch.
func preflight(body []byte) ([]message, *refusal) {
	if err := strict.Check(body, strict.Limits{MaxDepth: protocol.MaxDepth, Numbers: true}); err != nil {
		rpc := int64(jsonrpc.CodeInvalidRequest)
		var se *strict.Error
		if errors.As(err, &se) && se.Kind == strict.Syntax {
			rpc = jsonrpc.CodeParseError
		}
		r := &refusal{status: http.StatusBadRequest, rpc: rpc, err: edge.BadBody(err)}
		r.guess(body)
		return nil, r
	}
	if jsontext.Value(body).Kind() != '[' {
		m, r := readMessage(body)
		if r != nil {
			r.guess(body)
			return nil, r
		}
		return passed(body, m)
	}
	var raw []jsontext.Value
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, badRequest("the batch could not be read")
	}
	if len(raw) == 0 || len(raw) > maxBatch {
		return nil, badRequest("a batch has one to " + strconv.Itoa(maxBatch) + " messages")
	}
	ms := make([]message, len(raw))
	ids := map[string]bool{}
	for i, one := range raw {
		m, r := readMessage(one)
		if key := idKey(m.id); r == nil && m.method != "" && key != "" {
			if ids[key] {
				r = badRequest("two requests of the batch have the same id: each needs its own, as its answer is found by it. Nothing of the batch was run")
			}
			ids[key] = true
		}
		if r != nil {
			r.guess(one)
			r.batch = true
			return nil, r
		}
		m.more, m.batch = true, true // a batch of one is a batch
		ms[i] = m
	}
	return passed(body, ms...)
}

// passed lets the messages of a body through unless there's too much beside their arguments.
func passed(body []byte, ms ...message) ([]message, *refusal) {
	size := len(body)
	for _, m := range ms {
		size -= len(m.args)
	}
	values := 0
	if size > 2*maxAsideValues { // each value but the first takes two bytes
		values = strict.Values(body)
		for _, m := range ms {
			if m.args != nil {
				values -= strict.Values(m.args)
			}
		}
	}
	if size > maxAside || values > maxAsideValues {
		r := asRefusal(fleet.Errorf(protocol.CodeTooLarge, "beside the arguments of tools/call a body may have at most %d KiB and %d JSON values; nothing was started", maxAside>>10, maxAsideValues))
		r.guess(body)
		return nil, r
	}
	return ms, nil
}

// idKey is the same for ids that the SDK takes for one, however they're written (it drops
// fractions), and "" for none.
func idKey(id jsontext.Value) string {
	switch id.Kind() {
	case '"':
		return `"` + unquote(id)
	case '0':
		if f, err := strconv.ParseFloat(string(id), 64); err == nil {
			return strconv.FormatInt(int64(f), 10)
		}
		return string(id)
	default:
		return ""
	}
}

// readMessage reads one envelope: exact names, nothing unknown. doc is valid JSON without
// duplicates.
func readMessage(doc []byte) (message, *refusal) {
	var m message
	var params jsontext.Value
	response := false
	bad := members(doc, func(name string, v jsontext.Value) *refusal {
		switch name {
		case "jsonrpc":
			m.tag = v
		case "result", "error":
			m.more, response = true, true
			if name == "error" && json.Unmarshal(v, new(jsonrpc.Error)) != nil {
				return badRequest("the error of a response is an object with code and message")
			}
		case "id":
			if !whole(v) && v.Kind() != 'n' {
				return badRequest("an id is a text or a whole number: the answer to this one would have another, or none")
			}
			m.id = v
		case "method":
			if v.Kind() != '"' {
				return badRequest("method must be a string")
			}
			m.method, m.named = unquote(v), true
		case "params":
			params = v
		default:
			return badRequest("a JSON-RPC message has no member " + text.Quote(name, 64) + "; names are matched exactly")
		}
		return nil
	})
	if bad == nil {
		bad = m.readRest(params, response)
	}
	return m, bad
}

// fractional tells that a value is a number with a fraction, which the SDK would cut off.
func fractional(v jsontext.Value) bool {
	n, err := strconv.ParseFloat(string(v), 64)
	return v.Kind() == '0' && (err != nil || n != math.Trunc(n))
}

// readCall reads the params of tools/call.
func (m *message) readCall(params jsontext.Value) *refusal {
	if params.Kind() != '{' {
		return badParams("tools/call needs params: an object with name and arguments")
	}
	bad := members(params, func(name string, v jsontext.Value) *refusal {
		switch name {
		case "name":
			if v.Kind() != '"' {
				return badParams("params.name must be a string: the tool's name")
			}
			m.tool = unquote(v)
		case "arguments":
			if v.Kind() != '{' && v.Kind() != 'n' {
				return badParams("params.arguments must be an object")
			}
			m.args = v
		case "_meta":
			if v.Kind() != '{' && v.Kind() != 'n' {
				return badParams("params._meta must be an object")
			}
			if m.meta = v; v.Kind() == '{' {
				return m.readMeta(v)
			}
		case "inputResponses", "requestState", "task":
			m.more = true
		default:
			return badParams("the params of tools/call have no member " + text.Quote(name, 64) + "; names are matched exactly")
		}
		return nil
	})
	if bad == nil && m.tool == "" {
		bad = badParams("params.name is missing: the tool's name")
	}
	return bad
}

// members calls f for each member of the object doc. The values are parts of doc itself.
func members(doc []byte, f func(name string, v jsontext.Value) *refusal) *refusal {
	var bad *refusal
	err := strict.Members(doc, true, func(name, v jsontext.Value, _, _ int) bool {
		bad = f(unquote(name), v)
		return bad == nil
	})
	var se *strict.Error
	switch {
	case bad != nil:
		return bad
	case errors.As(err, &se) && se.Kind == strict.Type:
		return badRequest("a JSON-RPC message is an object")
	case err != nil:
		return badRequest("the message could not be read")
	}
	return nil
}

// unquote decodes a JSON string that was checked before.
func unquote(v jsontext.Value) string {
	if n := len(v); n >= 2 && v[0] == '"' && bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : n-1])
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return ""
	}
	return string(b)
}

// asRefusal is a request that the edge turned away.
func asRefusal(err error) *refusal {
	fe := fleet.AsError(err)
	return &refusal{status: edge.StatusOf(fe), rpc: codeServer, err: fe}
}

// write answers with the refusal.
func (r *refusal) write(w http.ResponseWriter) {
	edge.SayWhen(w.Header(), r.err)
	writeRPCError(w, r.status, r.id, rpcError(r.rpc, r.err))
}

func badRequest(msg string) *refusal {
	return &refusal{status: http.StatusBadRequest, rpc: jsonrpc.CodeInvalidRequest, err: fleet.Errorf(protocol.CodeBadArgs, "%s", msg)}
}

func badParams(msg string) *refusal {
	return &refusal{status: http.StatusBadRequest, rpc: jsonrpc.CodeInvalidParams, err: fleet.Errorf(protocol.CodeBadArgs, "%s", msg)}
}

// guess reads what a refused body seems to say, as far as it can be read: the id for the
// answer, tool and agent for the record. The first of two equal names counts.
func (r *refusal) guess(body []byte) {
	ids := 0
	_ = members(body, func(name string, v jsontext.Value) *refusal {
		switch name {
		case "id":
			if ids++; whole(v) { // what is no id is answered with null
				r.id = v
			}
		case "params":
			r.guessCall(v)
		}
		return nil
	})
	if ids > 1 || !goodID(r.id) {
		r.id = nil
	}
}

func (r *refusal) guessCall(params jsontext.Value) {
	_ = members(params, func(name string, v jsontext.Value) *refusal {
		switch {
		case name == "name" && r.tool == "":
			r.tool = unquote(v)
		case name == "arguments" && r.agent == "":
			r.agent = namedAgent(v)
		}
		return nil
	})
}

// goodID tells whether an id may be sent back: bounded and valid.
func goodID(id jsontext.Value) bool {
	return len(id) > 0 && len(id) <= 256 && id.IsValid()
}

// namedAgent is the agent_id in a call's arguments as the record shows it.
func namedAgent(args jsontext.Value) (agent string) {
	_ = members(args, func(name string, v jsontext.Value) *refusal {
		if name == agentMember && agent == "" {
			if agent = unquote(v); agent == "" {
				agent = text.Cut(string(v), 64)
			}
		}
		return nil
	})
	return agent
}
