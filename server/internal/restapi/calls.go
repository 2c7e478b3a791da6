package restapi

import (
	"context"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// MaxWait bounds wait_seconds: proxies cut answers that take longer.
const MaxWait = 300

// CallRequest asks for one call. agent_id is taken as it stands: dispatch judges it, so that
// a wrong one is refused and recorded the same way on every interface.
type CallRequest struct {
	AgentID        jsontext.Value `json:"agent_id,omitzero" doc:"The exact id of the agent. Required; nothing else selects a host."`
	Tool           string         `json:"tool" maxLength:"40" doc:"The tool's name, such as shell_exec."`
	Args           jsontext.Value `json:"args,omitzero" doc:"The tool's arguments, without agent_id; see list-tools."`
	WaitSeconds    *int           `json:"wait_seconds,omitzero" minimum:"0" maximum:"300" doc:"How long to wait for the end; 50 when absent, 0 not to wait. The call goes on after it."`
	IdempotencyKey *string        `json:"idempotency_key,omitzero" minLength:"1" maxLength:"128" doc:"Text of at most 128 bytes of UTF-8 without control characters. A call with the same key is the same call: it runs once. With other arguments it's a conflict. One that ended as not_started is tried again."`
	QueueFor       *int           `json:"queue_for_seconds,omitzero" minimum:"1" maximum:"604800" doc:"Lets a call to an agent that is offline wait for it, durably, at most this long; it never runs after that. Absent: such a call fails at once."`
}

// Call is a call's end, or where it stands.
type Call struct {
	CallID     string         `json:"call_id"`
	AgentID    string         `json:"agent_id" doc:"Where it ran."`
	RunAs      string         `json:"run_as,omitzero" doc:"The user it ran as."`
	Tool       string         `json:"tool"`
	State      string         `json:"state" enum:"pending_approval,queued,dispatched,running,succeeded,failed,denied,expired,cancelled,timed_out,not_started,outcome_unknown" doc:"The first four are open, the others final. A queued one has not been sent: it waits for its host (queued_until tells), or for its turn."`
	Result     jsontext.Value `json:"result,omitzero" doc:"The tool's result. A call that failed may have one too."`
	Error      *CallError     `json:"error,omitzero" doc:"Absent for succeeded and for open calls."`
	Joined     bool           `json:"joined,omitzero" doc:"This was an earlier call with the same key."`
	CreatedAt  time.Time      `json:"created_at,omitzero"`
	FinishedAt time.Time      `json:"finished_at,omitzero"`

	QueuedUntil time.Time `json:"queued_until,omitzero" doc:"Of a call that was queued: when it expires unless its agent connects before."`
	Evidence    string    `json:"evidence,omitzero" doc:"What was learnt after the outcome had been recorded as outcome_unknown: one line of what the host says."`

	CancelRequestedAt time.Time `json:"cancel_requested_at,omitzero" doc:"When the end of the call was asked for. It's on record and counts also after a restart of the server: an agent that is away is told as soon as it's back. The state alone says how the call ended."`
	CancelRequestedBy string    `json:"cancel_requested_by,omitzero" doc:"Who asked, by name."`
}

type createCallIn struct {
	UserAgent string `header:"User-Agent" hidden:"true"`
	Body      CallRequest
}

type callOut struct {
	Status int
	Body   Call
}

func (a *API) createCall(ctx context.Context, who fleet.Principal, in *createCallIn) (*callOut, error) {
	b, client := in.Body, clientName(in.UserAgent)
	if fe := b.bounds(); fe != nil {
		a.Dispatch.Refuse(who, fleet.Refusal{Client: client, Edge: edgeName, Code: fe.Code, Message: fe.Message})
		return nil, fe
	}
	res, err := a.Dispatch.Call(ctx, who, dispatch.Request{
		Tool: b.Tool, Agent: b.AgentID, Args: b.Args, Wait: b.wait(),
		Key: value(b.IdempotencyKey), Client: client, Edge: edgeName, QueueFor: time.Duration(value(b.QueueFor)) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return callAnswer(res), nil
}

// bounds checks the times and the key of a request.
func (b *CallRequest) bounds() *fleet.Error {
	const most = int(dispatch.MaxQueue / time.Second)
	switch {
	case outside(b.WaitSeconds, 0, MaxWait):
		return fleet.Errorf(protocol.CodeBadArgs, "wait_seconds must be 0 to %d", MaxWait)
	case outside(b.QueueFor, 1, most):
		return fleet.Errorf(protocol.CodeBadArgs, "queue_for_seconds must be 1 to %d", most)
	case b.IdempotencyKey != nil && *b.IdempotencyKey == "":
		return fleet.Errorf(protocol.CodeBadArgs, "idempotency_key is empty: give a key of your own, or leave the member out")
	default:
		return nil
	}
}

// wait is how long the caller waits, as dispatch takes it: there 0 is the default.
func (b *CallRequest) wait() time.Duration {
	if b.WaitSeconds != nil && *b.WaitSeconds == 0 {
		return dispatch.AtOnce
	}
	return time.Duration(value(b.WaitSeconds)) * time.Second
}

// value is an optional member's value, the zero value of one that's absent.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// outside tells that an optional number was given and isn't from least to most. What is given
// is never taken for absent, 0 neither.
func outside[N int | int64](p *N, least, most N) bool { return p != nil && (*p < least || *p > most) }

// edgeName is this interface's name in the record.
const edgeName = "rest"

// callAnswer is 200 for a call that has ended, however it did, and 202 for an open one.
func callAnswer(r dispatch.Result) *callOut {
	out := &callOut{Status: http.StatusAccepted, Body: Call{
		CallID: string(r.CallID), AgentID: string(r.Agent), RunAs: r.RunAs, Tool: r.Tool, State: string(r.State),
		Result: r.Output, Error: callError(r.Err), Joined: r.Joined, CreatedAt: r.CreatedAt.UTC(), FinishedAt: r.FinishedAt.UTC(),
		QueuedUntil: r.QueuedUntil.UTC(), Evidence: text.Line(r.Evidence, maxEvidence), CancelRequestedAt: r.CancelAt.UTC(), CancelRequestedBy: r.CancelBy,
	}}
	if r.State.Final() {
		out.Status = http.StatusOK
	}
	return out
}

type callPath struct {
	CallID string `path:"call_id" maxLength:"64" doc:"The call's id."`
}

type showCallIn struct {
	CallID      string `path:"call_id" maxLength:"64" doc:"The call's id."`
	WaitSeconds int    `query:"wait_seconds" minimum:"0" maximum:"300" doc:"How long to wait for the end."`
}

func (a *API) showCall(ctx context.Context, who fleet.Principal, in *showCallIn) (*callOut, error) {
	r, err := a.Dispatch.Result(ctx, who, fleet.CallID(in.CallID), time.Duration(in.WaitSeconds)*time.Second)
	if err != nil {
		return nil, err
	}
	return callAnswer(r), nil
}

func (a *API) cancelCall(ctx context.Context, who fleet.Principal, in *callPath) (*callOut, error) {
	r, err := a.Dispatch.Cancel(ctx, who, fleet.CallID(in.CallID))
	if err != nil {
		return nil, err
	}
	return callAnswer(r), nil
}

type commitmentsOut struct {
	Body commit.Commitments
}

func (a *API) showCommitments(ctx context.Context, who fleet.Principal, in *callPath) (*commitmentsOut, error) {
	c, err := a.Dispatch.Commitments(ctx, who, fleet.CallID(in.CallID))
	if err != nil {
		return nil, err
	}
	return &commitmentsOut{Body: c}, nil
}

// CallSummary is a call in a list: who called what, and how it ended, without its result.
type CallSummary struct {
	CallID     string         `json:"call_id"`
	AgentID    string         `json:"agent_id"`
	Tool       string         `json:"tool"`
	Args       jsontext.Value `json:"args" doc:"As recorded: members that may hold secrets are replaced by their length (a string's own bytes, anything else's JSON), long ones are cut."`
	State      string         `json:"state"`
	Error      *CallError     `json:"error,omitzero"`
	ExitCode   *int           `json:"exit_code,omitzero" doc:"Of a command: its exit code; 128+n after signal n, -1 if it never started or was ended by a time limit or a cancel. Absent of anything else."`
	Principal  string         `json:"principal" doc:"Who called, such as pat:ID."`
	Name       string         `json:"name" doc:"The principal's name then."`
	Client     string         `json:"client,omitzero" doc:"The client's own word for itself; unverified."`
	Edge       string         `json:"edge" doc:"mcp, rest or system."`
	CreatedAt  time.Time      `json:"created_at"`
	FinishedAt time.Time      `json:"finished_at,omitzero"`
	TookUS     int64          `json:"took_us,omitzero" doc:"Microseconds on the host."`

	QueuedUntil time.Time `json:"queued_until,omitzero" doc:"Of a call that was queued: when it expires unless its agent connects before."`
	Evidence    string    `json:"evidence,omitzero" doc:"What was learnt after the outcome had been recorded as outcome_unknown."`
	EvidenceAt  time.Time `json:"evidence_at,omitzero"`

	CancelRequestedAt time.Time `json:"cancel_requested_at,omitzero" doc:"When the end of the call was asked for."`
	CancelRequestedBy string    `json:"cancel_requested_by,omitzero" doc:"Who asked, by name."`
}

// maxEvidence bounds a line of evidence, in bytes.
const maxEvidence = 512

type listCallsIn struct {
	AgentID string `query:"agent_id" maxLength:"63" doc:"Only calls of this agent."`
	Tool    string `query:"tool" maxLength:"40" doc:"Only calls of this tool."`
	State   string `query:"state" enum:"pending_approval,queued,dispatched,running,succeeded,failed,denied,expired,cancelled,timed_out,not_started,outcome_unknown" doc:"Only calls in this state."`
	Limit   int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many."`
	Cursor  string `query:"cursor" maxLength:"200" doc:"next_cursor of the page before."`
}

type callList struct {
	Body CallList
}

// CallList is a page of calls, the newest first.
type CallList struct {
	Calls      []CallSummary `json:"calls"`
	NextCursor string        `json:"next_cursor,omitzero"`
}

func (a *API) listCalls(ctx context.Context, who fleet.Principal, in *listCallsIn) (*callList, error) {
	if err := fleet.CheckRowCursor(in.Cursor); err != nil {
		return nil, err
	}
	f := store.CallFilter{
		Agent: fleet.AgentID(in.AgentID), Tool: in.Tool, State: fleet.State(in.State), Before: in.Cursor, Limit: in.Limit,
	}
	if !who.Admin {
		f.Principal = who.ID
	}
	calls, next, err := a.Store.Calls(ctx, f)
	if err != nil {
		return nil, err
	}
	out := CallList{Calls: []CallSummary{}, NextCursor: next}
	for _, c := range calls {
		out.Calls = append(out.Calls, summary(c))
	}
	return &callList{Body: out}, nil
}

func summary(c fleet.Call) CallSummary {
	s := CallSummary{
		CallID: string(c.ID), AgentID: string(c.Agent), Tool: c.Tool, Args: c.Args, State: string(c.State), ExitCode: c.ExitCode,
		Principal: c.Principal, Name: c.Name, Client: c.Client, Edge: c.Edge,
		CreatedAt: c.CreatedAt.UTC(), FinishedAt: c.FinishedAt.UTC(), TookUS: c.TookUS,
		QueuedUntil: c.QueueUntil.UTC(), Evidence: text.Line(c.Evidence, maxEvidence), EvidenceAt: c.EvidenceAt.UTC(),
		CancelRequestedAt: c.CancelAt.UTC(), CancelRequestedBy: c.CancelBy,
	}
	if c.Code != "" {
		s.Error = &CallError{Code: string(c.Code), Reason: c.Reason, Message: c.Message}
	}
	return s
}

// Tool is a tool that the caller may use.
type Tool struct {
	Name         string         `json:"name"`
	Title        string         `json:"title"`
	Description  string         `json:"description"`
	Effect       string         `json:"effect" enum:"read_only,standard_change,normal_change"`
	Render       string         `json:"render" enum:"json,process,file,output" doc:"How its result is shown: process results have stdout, stderr and exit_code."`
	Timeout      int            `json:"timeout_seconds" doc:"The time limit when none is given."`
	Stream       string         `json:"stream,omitzero" enum:"to_host,from_host" doc:"A file's bytes travel beside the call: it's made by the files interface alone, not by create-call."`
	InputSchema  jsontext.Value `json:"input_schema" doc:"JSON schema of args."`
	OutputSchema jsontext.Value `json:"output_schema" doc:"JSON schema of result."`
}

type toolList struct {
	Body ToolList
}

// ToolList is all the tools that the caller may use.
type ToolList struct {
	Tools []Tool `json:"tools"`
}

func (a *API) listTools(_ context.Context, who fleet.Principal, _ *nothing) (*toolList, error) {
	out := ToolList{Tools: []Tool{}}
	for _, d := range a.Dispatch.Tools(who) {
		t, err := toolOf(d)
		if err != nil {
			return nil, err
		}
		out.Tools = append(out.Tools, t)
	}
	return &toolList{Body: out}, nil
}

func toolOf(d *capability.Definition) (Tool, error) {
	in, err := d.In.MarshalJSON()
	if err != nil {
		return Tool{}, fleet.Wrap(protocol.CodeInternal, err, "a schema of Drover's is damaged")
	}
	out, err := d.Out.MarshalJSON()
	if err != nil {
		return Tool{}, fleet.Wrap(protocol.CodeInternal, err, "a schema of Drover's is damaged")
	}
	return Tool{
		Name: d.Name, Title: d.Title, Description: d.Doc, Effect: string(d.Effect), Render: string(d.Render),
		Timeout: d.Timeout, Stream: string(d.Stream), InputSchema: in, OutputSchema: out,
	}, nil
}

// clientName is a caller's own word for itself, for the record.
func clientName(userAgent string) string {
	if userAgent == "" {
		return edgeName
	}
	return text.Line(userAgent, 128)
}
