package mcpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Waiting in call_result, in seconds: less than what clients wait for a first answer.
const (
	resultWaitDefault = 30
	resultWaitMax     = 50
)

type resultIn struct {
	CallID string `json:"call_id" jsonschema:"The id of the call, as its answer or its progress gave it."`
	Wait   *int   `json:"wait_seconds,omitempty" jsonschema:"How long to wait for the call's end, in seconds; 30 when absent, 0 to look only."`
}

func resultBounds(s *jsonschema.Schema) {
	s.Properties["call_id"].MinLength, s.Properties["call_id"].MaxLength = ptr(36), ptr(36)
	w := s.Properties["wait_seconds"]
	w.Minimum, w.Maximum = ptr(0.0), ptr(float64(resultWaitMax))
}

type cancelIn struct {
	CallID string `json:"call_id" jsonschema:"The id of the call to end."`
}

func cancelBounds(s *jsonschema.Schema) {
	s.Properties["call_id"].MinLength, s.Properties["call_id"].MaxLength = ptr(36), ptr(36)
}

// callID reads a call's id in its one form; any other names no call.
func callID(s string) (fleet.CallID, error) {
	id, ok := fleet.ParseCallID(s)
	if !ok {
		return "", fleet.Errorf(protocol.CodeNotFound, "no call of that id is yours; a call id is the UUID that the call's answer or its progress gave")
	}
	return id, nil
}

// callResult answers as the call itself would have.
func (a *API) callResult(ctx context.Context, by use, in resultIn) (any, error) {
	id, err := callID(in.CallID)
	if err != nil {
		return nil, err
	}
	wait := resultWaitDefault
	if in.Wait != nil {
		wait = *in.Wait
	}
	res, err := a.dispatch.Result(ctx, by.who, id, time.Duration(wait)*time.Second)
	if err != nil {
		return nil, err
	}
	def := capability.Find(res.Tool)
	if def == nil { // a tool that this version no longer has
		def = &capability.Definition{Spec: capability.Spec{Name: res.Tool, Render: capability.RenderJSON}}
	}
	if !res.State.Final() {
		// This tool has no output schema, so that a call that is still open is no error.
		return textResult(stillOpen(res), false, metaOf(res)), nil
	}
	return a.result(def, res, capability.MaxOutput), nil
}

type cancelOut struct {
	CallID  fleet.CallID  `json:"call_id" jsonschema:"The call."`
	AgentID fleet.AgentID `json:"agent_id" jsonschema:"The agent it was for."`
	Tool    string        `json:"tool" jsonschema:"Its tool."`
	State   fleet.State   `json:"state" jsonschema:"Where it stands: cancelled, or the end it had before."`
	Note    string        `json:"note" jsonschema:"What that means."`
}

func (a *API) callCancel(ctx context.Context, by use, in cancelIn) (any, error) {
	id, err := callID(in.CallID)
	if err != nil {
		return nil, err
	}
	res, err := a.dispatch.Cancel(ctx, by.who, id)
	if err != nil {
		return nil, err
	}
	out := cancelOut{CallID: res.CallID, AgentID: res.Agent, Tool: res.Tool, State: res.State}
	switch {
	case res.State == fleet.Cancelled && !res.QueuedUntil.IsZero() && res.Err != nil:
		out.Note = text.Line(res.Err.Message, 512) // says whether it had been sent
	case res.State == fleet.Cancelled:
		out.Note = fmt.Sprintf("It was ended on %s, with every process it had started. call_result gives what it had printed.", res.Agent)
	case res.State == fleet.OutcomeUnknown:
		out.Note = fmt.Sprintf("Agent %s did not confirm the end: look at the host before you repeat anything.", res.Agent)
	case res.State.Final():
		out.Note = "It had ended before it could be cancelled; call_result gives its result."
	case res.CancelAt.IsZero():
		out.Note = "The agent is told to end it and hasn't confirmed yet; ask call_result. The record couldn't be written: a restart of the server before the end would forget this cancel."
	default:
		out.Note = "The cancel is on record. The agent is told to end it, or as soon as it's back if it's away, and hasn't confirmed yet; ask call_result."
	}
	return out, nil
}
