// Package dispatch is the path of a call: resolve and authorise, validate, freeze, record
// the intent, route, call, record the outcome. MCP, REST and everything the server starts
// itself go through Dispatcher.Call; there's no second way to an agent.
package dispatch

import (
	"context"
	"io"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Caller is a live tunnel to one agent.
type Caller interface {
	// Call writes req at most once and waits for its response. protocol.ErrNotSent (in
	// the chain) means that no byte of the request reached the agent complete, so it did
	// not start; protocol.ErrCut that the connection ended after the request was written.
	// When ctx is done, Call sends a cancel with context.Cause(ctx)'s text and goes on
	// waiting for the response, which tells how it ended, for at most protocol.CancelGrace;
	// then it returns protocol.ErrNoAnswer.
	Call(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error)
	// Resume asks what became of a call that was written to an earlier connection, and
	// waits for its response if it runs or has ended. It never starts anything. ctx and the
	// errors count as in Call; ErrNotSent means that nothing was learnt.
	Resume(ctx context.Context, id string, x mux.Exchange) (mux.Fate, *protocol.Response, error)
	// Boot names the agent's journal and its host's boot; "" when it keeps none.
	Boot() string
	// Version is the protocol version of the connection: below 2 an agent can't resume,
	// takes no streams and no expiry.
	Version() int
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
	// Wait is how long Call waits before it answers with a call that's still open: at
	// least a second, or AtOnce; 50 s when zero.
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
	// QueueFor lets a call to an agent that is offline wait for it, durably, at most this
	// long: MinQueue to MaxQueue. Zero: such a call fails at once. Of a call that is sent at
	// once it bounds nothing.
	QueueFor time.Duration
	// Body and Sink are the two ways of a file under a call of a streaming tool: what is
	// sent to the agent (BodySize bytes, -1 when that isn't known) and what comes from it.
	Body     io.Reader
	BodySize int64
	Sink     io.Writer
	// Interrupt, if not nil, has a Write of Sink that hangs return: mux.Exchange.Interrupt.
	Interrupt func()
	// Check, if not nil, judges the end of a call with a Body or a Sink before that's on
	// record, by what went through them: it's given the result and the error, nil for a success,
	// and returns the error to record, and to answer. A Sink's own error counts before that. It
	// may run after Call has returned.
	Check func(result jsontext.Value, err *fleet.Error) *fleet.Error
}

// Bounds of Request.QueueFor.
const (
	MinQueue = time.Second
	MaxQueue = 7 * 24 * time.Hour
)

// Update is news of a running call.
type Update struct {
	CallID  fleet.CallID
	Agent   fleet.AgentID
	Message string // one clean line; "" when only time has passed
	Host    bool   // the message is the host's, not Drover's
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
	// QueuedUntil is when a queued call expires unless its agent comes before; zero for one
	// that wasn't queued.
	QueuedUntil time.Time
	// CancelAt is when the end of the call was asked for, as it's on record, and CancelBy who
	// asked, by name; zero if nobody did. State alone says whether it has ended.
	CancelAt time.Time
	CancelBy string
	// Evidence is what was learnt of the call after its outcome had been recorded as
	// unknown, one line; "" if nothing was.
	Evidence string
}

// queueOwner is a principal with calls queued for one agent.
type queueOwner struct {
	agent fleet.AgentID
	who   string
}

func ownerOf(in *fleet.Intent) queueOwner { return queueOwner{in.Agent, in.Principal.ID} }
