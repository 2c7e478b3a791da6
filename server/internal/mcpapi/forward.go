package mcpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// How long a call is waited for before its caller gets a handle. A client that hears
// nothing gives up after 60 s; with progress most wait 240 s or more, and some for ever.
const (
	quietWait    = 50 * time.Second
	progressWait = 225 * time.Second
	endlessWait  = protocol.MaxDeadlineMS*time.Millisecond + time.Hour // the call's own deadline ends it
	queuedWait   = time.Second                                         // for a host that is offline
)

// Members of a request's _meta that Drover reads.
const (
	metaToolUse = "claudecode/toolUseId"
	metaTrace   = "traceparent"
	metaKey     = "io.github.drover-fleet/idempotency_key"
)

// forward runs a tool on an agent: it takes Drover's own members out of the arguments and
// gives the rest to dispatch as it is.
func (a *API) forward(def *capability.Definition) func(context.Context, use) (*mcp.CallToolResult, error) {
	return func(ctx context.Context, u use) (*mcp.CallToolResult, error) {
		args, err := splice(u.args)
		if err == nil && u.badKey {
			err = fleet.Errorf(protocol.CodeBadArgs, "_meta[%q] must be a string of 1 to 128 bytes: a call with a key runs once however often it's sent", metaKey)
		}
		var queue time.Duration
		if err == nil {
			queue, err = args.queueFor()
		}
		if err != nil {
			fe := fleet.AsError(err)
			a.dispatch.Refuse(u.who, fleet.Refusal{Client: u.client, Edge: edgeName, Tool: def.Name, Agent: namedAgent(u.args), Code: fe.Code, Message: fe.Message})
			return errorResult(def.Name, fe), nil
		}
		call, release := callContext(ctx, u.modern)
		defer release()
		call = a.trace.FromMessage(call, u.traceparent)
		r := dispatch.Request{
			Tool: def.Name, Agent: args.agent, Args: args.rest, Wait: quietWait, Edge: edgeName, QueueFor: queue,
			Client: u.client, CancelOnDone: true, Key: u.key, ToolUseID: u.toolUseID,
		}
		var p *progress
		if u.notify != nil {
			p = newProgress(u.notify, a.caught("progress", u.who))
			defer p.stop() // also after a panic: nothing is written to an answer that's over
			r.Progress, r.Wait = p.update, progressWait
			if u.patient {
				r.Wait = endlessWait
			}
		}
		a.boundWait(u.who, &r)
		res, err := a.dispatch.Call(call, u.who, r)
		p.stop()
		if err != nil {
			return a.refused(call, def.Name, err)
		}
		return a.result(def, res, textLimit(def, args.rest)), nil
	}
}

// patient tells whether a client waits for as long as it hears of progress.
func patient(client *mcp.Implementation) bool { return client != nil && client.Name == "claude-code" }

// boundWait keeps the answer to a call that may be queued from taking as long as its queue.
func (a *API) boundWait(who fleet.Principal, r *dispatch.Request) {
	if r.QueueFor == 0 {
		return
	}
	r.Wait = min(r.Wait, progressWait) // the host may go offline between this look and the call
	if view, err := a.fleet.Agent(who, unquote(r.Agent), edgeName); err == nil && !view.Online {
		r.Wait = queuedWait
	}
}

// refused shows an error of dispatch, which has recorded it: nothing was started. A tool
// that isn't granted (any more) reads like one that doesn't exist.
func (a *API) refused(ctx context.Context, tool string, err error) (*mcp.CallToolResult, error) {
	if ctx.Err() != nil {
		return errorResult(tool, errEnded()), nil
	}
	fe := fleet.AsError(err)
	if fe.Code == protocol.CodeUnknownTool {
		return nil, a.unknownTool()
	}
	if fe.Code == protocol.CodeInternal {
		a.log.Error("a call failed inside", "tool", tool, "err", fe.Err)
	}
	return errorResult(tool, fe), nil
}

// errEnded is the answer to a request that was ended before it: nobody waits for that any more,
// and nothing failed. A call that it had joined goes on.
func errEnded() *fleet.Error {
	return fleet.Errorf(protocol.CodeCancelled, "the request was ended before its answer")
}

// textLimit is how many bytes of text the caller of a tool asked for.
func textLimit(def *capability.Definition, args []byte) int {
	if def.Render == capability.RenderJSON {
		return 0
	}
	var in struct {
		Max   int `json:"max_output"`
		Limit int `json:"limit"`
	}
	err := strict.Decode(args, &in)
	if def.Render == capability.RenderOutput {
		in.Max = in.Limit
	}
	if err != nil || in.Max <= 0 {
		return capability.DefaultOutput
	}
	return min(in.Max, capability.MaxOutput)
}

// setKey takes an idempotency key that was given. One that is no string, or empty, is refused
// when the call is made: dropped in silence, it would let a call run twice.
func (u *use) setKey(given bool, key string) { u.key, u.badKey = key, given && key == "" }

func metaString(m mcp.Meta, name string) string {
	s, _ := m[name].(string)
	return s
}

func clientOf(req *mcp.CallToolRequest) string {
	var h http.Header
	if req.Extra != nil {
		h = req.Extra.Header
	}
	return clientName(clientInfo(req), h)
}

// clientInfo is what the client says of itself. The SDK has checked it by now, and would
// marshal and decode it again.
func clientInfo(req *mcp.CallToolRequest) *mcp.Implementation {
	said, ok := req.Params.Meta[mcp.MetaKeyClientInfo].(map[string]any)
	if !ok {
		return req.ClientInfo() // an older era's: the session's
	}
	name, _ := said["name"].(string)
	version, _ := said["version"].(string)
	return &mcp.Implementation{Name: name, Version: version}
}

// clientName is the client's own name and version, for display; its User-Agent where it
// gave none.
func clientName(info *mcp.Implementation, h http.Header) string {
	if info == nil || info.Name == "" {
		return text.Line(h.Get("User-Agent"), 96)
	}
	if info.Version == "" {
		return text.Line(info.Name, 96)
	}
	return text.Line(info.Name, 64) + "/" + text.Line(info.Version, 31)
}
