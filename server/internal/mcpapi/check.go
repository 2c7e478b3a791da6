package mcpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// batchless is the first revision without batches; a request that names none is of the one before.
const batchless = "2025-06-18"

// check finds what clients get wrong about a request as a whole, before the SDK does, which has
// other words for it, and takes an unknown method for a body that can't be read. It's the order
// that counts: whoever has no session learns that first.
func (a *API) check(r *http.Request, who fleet.Principal, stateful bool, msgs []message) *refusal {
	version, post := r.Header.Get(versionHeader), r.Method == http.MethodPost
	plain, events := accepts(r.Header["Accept"])
	begins := soleMethod(msgs) == methodInitialize
	switch {
	case stateful && !begins && !a.servers.of(who.ID).has(r.Header.Get(sessionHeader)):
		return &refusal{status: http.StatusNotFound, rpc: codeSessionMissing, err: noSession()}
	case version != "" && version < modernVersion && !slices.Contains(a.revisions, version):
		return badRequest("this revision of MCP (the header Mcp-Protocol-Version) isn't spoken here; those that are: " + strings.Join(a.revisions, ", "))
	case post && !(plain && events):
		return badRequest("the header Accept must have both application/json and text/event-stream")
	case stateful && r.Method == http.MethodGet && !events:
		return badRequest("the header Accept must have text/event-stream")
	case (post || stateful) && r.Header["Last-Event-Id"] != nil:
		return badRequest("streams can't be taken up again here, and no event has an id: leave the header Last-Event-ID out, and ask call_result for what a call became")
	case len(msgs) > 0 && msgs[0].batch && version >= batchless:
		return badRequest("there are no batches from the revision " + batchless + " on: send each message by itself; nothing of the batch was run")
	}
	for _, m := range msgs {
		switch {
		case m.unknown && m.batch:
			return badRequest("the batch has a method that Drover hasn't: " + text.Quote(m.method, 64) + "; nothing of the batch was run")
		case m.unknown && m.id != nil:
			return &refusal{status: http.StatusNotFound, rpc: jsonrpc.CodeMethodNotFound, err: fleet.Errorf(protocol.CodeUnsupported,
				"there is no method %s here; tools/list and tools/call are in every revision of MCP", text.Quote(m.method, 64))}
		case stateful && m.version != "":
			bad := badRequest("the revision in _meta (" + mcp.MetaKeyProtocolVersion + ") is for requests without a session: in one, leave it out, and send what initialize agreed on as Mcp-Protocol-Version")
			bad.rpc = mcp.CodeHeaderMismatch
			return bad
		}
	}
	return nil
}

// soleMethod is the method of the one message that isn't in a batch, else "".
func soleMethod(msgs []message) string {
	if len(msgs) != 1 || msgs[0].batch {
		return ""
	}
	return msgs[0].method
}

// turnAway answers what check found, and records it if it was a call.
func (a *API) turnAway(w http.ResponseWriter, r *http.Request, who fleet.Principal, msgs []message, bad *refusal) {
	if len(msgs) == 1 && goodID(msgs[0].id) && !msgs[0].batch && msgs[0].named {
		bad.id = msgs[0].id
	}
	bad.settle(r)
	for _, m := range msgs {
		if m.method == methodCall {
			a.dispatch.Refuse(who, fleet.Refusal{
				Client: clientName(nil, r.Header), Edge: edgeName, Tool: m.tool, Agent: namedAgent(m.args), Code: bad.err.Code, Message: bad.err.Message,
			})
		}
	}
	bad.write(w)
}

// settle chooses the HTTP status. Until 2025-11-25 what answers a request is a JSON-RPC error of
// the status 200: a status of 400 says that the body was no request.
func (r *refusal) settle(req *http.Request) {
	if req.Header.Get(versionHeader) < modernVersion && r.id != nil && !r.batch && (r.rpc == jsonrpc.CodeMethodNotFound || r.rpc == jsonrpc.CodeInvalidParams) {
		r.status = http.StatusOK
	}
}

// ignored tells that a body is a notification that Drover doesn't know: it's taken, and means
// nothing here.
func ignored(msgs []message) bool {
	return len(msgs) == 1 && msgs[0].unknown && msgs[0].id == nil && !msgs[0].batch
}
