// Package dispatch is the path of a call: resolve and authorise, validate, freeze, record
// the intent, route, call, record the outcome. MCP, REST and everything the server starts
// itself go through Dispatcher.Call; there's no second way to an agent.
package dispatch

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Caller is a live tunnel to one agent.
type Caller interface {
	// Call writes req at most once and waits for its response. protocol.ErrNotSent (in
	// the chain) means that no byte of the request reached the agent complete, so it did
	// not start; protocol.ErrCut that the connection ended after the request was written.
	// When ctx is done, Call sends a cancel with context.Cause(ctx)'s text and goes on
	// waiting for the response, which tells how it ended, for at most protocol.CancelGrace;
	// then it returns protocol.ErrNoAnswer. progress may be nil; it's called in order from
	// one goroutine and must not block for long.
	Call(ctx context.Context, req *protocol.Request, progress func(protocol.Progress)) (*protocol.Response, error)
}

// Router finds the live tunnel of an agent's present key.
type Router interface {
	// Route returns the tunnel of exactly this agent and generation; false when there is
	// none now. It never returns another agent's.
	Route(agent fleet.AgentID, generation int64) (Caller, bool)
}

// Request is one call as an edge received it.
type Request struct {
	Tool string
	// Agent is the raw JSON of agent_id; nil when it was absent.
	Agent jsontext.Value
	// Args is the argument object without agent_id; nil counts as {}.
	Args jsontext.Value
	// Wait is how long Call waits before it answers with a call that's still open; at
	// least a second, 50 s when zero.
	Wait time.Duration
	// Key is an idempotency key, at most 128 bytes; ToolUseID is a client's own id of this
	// tool use. Either may be "".
	Key, ToolUseID string
	// Client is the client's name for the record ("claude-code/2.1"); unverified. Edge is
	// mcp, rest or system.
	Client, Edge string
	// CancelOnDone cancels the call when ctx is done; without it the call goes on,
	// detached.
	CancelOnDone bool
	// Progress, if not nil, hears of the call: first when it's on its way, then each
	// progress frame. It must not block.
	Progress func(Update)
}

// Update is news of a running call.
type Update struct {
	CallID  fleet.CallID
	Agent   fleet.AgentID
	Message string // one clean line; "" when only time has passed
}

// Result is a call's end, or where it stands when the wait was over (State not final).
type Result struct {
	CallID fleet.CallID
	Agent  fleet.AgentID
	RunAs  string // the host's user, as its agent said it last
	Tool   string
	State  fleet.State
	// Output is the capability's result; a failed call may have one too. nil if none.
	Output jsontext.Value
	// Err is nil for succeeded and for calls that are still open.
	Err *fleet.Error
	// Joined tells that this was an earlier call with the same key or tool use.
	Joined     bool
	CreatedAt  time.Time
	FinishedAt time.Time
}
