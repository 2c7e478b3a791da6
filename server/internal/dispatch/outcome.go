package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/dispatch/word"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// outcome turns what came back into the one outcome.
func (d *Dispatcher) outcome(f *flight, resp *protocol.Response, err error) fleet.Outcome {
	out := fleet.Outcome{CallID: f.id, At: time.Now()}
	if err != nil {
		fe := f.failure(err)
		out.Code, out.Reason, out.Message = fe.Code, fe.Reason, fe.Message
		if out.State = fleet.StateOf(fe.Code); out.State == fleet.Failed && !f.sent {
			out.State = fleet.NotStarted
		}
		return out
	}
	said := f.said(resp)
	if bad := said.Contradiction(); bad != "" {
		d.warn(f, "an agent contradicts itself", "what", bad)
		out.State, out.Code, out.Reason = fleet.OutcomeUnknown, protocol.CodeOutcomeUnknown, "contradiction"
		out.Message = fmt.Sprintf("agent %s contradicts itself (%s): it may have run, run in part, or not at all. Check on the host before calling again", f.target.agent.ID, bad)
		return out
	}
	if out.TookUS = max(resp.TookUS, 0); out.TookUS > out.At.Sub(f.created).Microseconds()+word.ClocksApart.Microseconds() {
		out.TookUS = 0 // it can't have taken longer than it's been
	}
	if len(resp.Result) > 0 {
		norm, nerr := f.target.def.Normalize(resp.Result)
		if nerr != nil {
			d.warn(f, "an agent's result doesn't fit its tool")
			fe := fleet.AsError(nerr)
			out.Code, out.Reason, out.Message, out.State = fe.Code, fe.Reason, fe.Message, fleet.Failed
			return out
		}
		out.Result = norm
		out.ExitCode = exitCode(f.target.def, norm)
	}
	if resp.Error != nil {
		if out.Code, out.Reason, out.Message = f.agentError(resp.Error); out.Reason == fleet.ReasonAgentFault {
			d.warn(f, "an agent failed inside", "message", out.Message)
		}
	} else if len(resp.Result) == 0 {
		out.Code, out.Reason, out.Message = protocol.CodeToolFailed, "bad_result", "the agent answered without a result"
	}
	out.State = fleet.StateOf(out.Code)
	if out.Code == protocol.CodeRateLimited && !said.Begun() {
		out.State = fleet.NotStarted // the agent was busy
	}
	return out
}

// said is what the agent said of the call, beside what's known of it here. Not all cancels of
// an earlier process are; a file ends with its connection, or its receiver, and its call with it.
func (f *flight) said(resp *protocol.Response) *word.Said {
	def := f.target.def
	s := &word.Said{
		Fate: f.fate, Resp: resp, Ran: f.heard(), Limit: min(f.target.timeout, f.target.limit), Since: word.Since(f.created, time.Now()),
		Asked:   f.ctx.Err() != nil || f.late || f.adopted || def.Stream != capability.NoStream && (f.cut || f.sink != nil && f.sink.err != nil),
		Refuses: def.Stream != capability.NoStream || def.Name == "job_start",
	}
	if !f.sentAt.IsZero() {
		s.Since = word.Since(f.sentAt, time.Now())
	}
	if resp != nil && len(resp.Result) > 0 {
		s.Exit = exitCode(def, resp.Result)
	}
	return s
}

// failure words an error of the tunnel. After the request was written nobody knows.
func (f *flight) failure(err error) *fleet.Error {
	var fe *fleet.Error
	id := f.target.agent.ID
	cause := context.Cause(f.ctx)
	switch {
	case errors.As(err, &fe):
		return fe
	case errors.Is(err, protocol.ErrNotSent) && cause != nil:
		return fleet.Errorf(protocol.CodeCancelled, "%s before it was sent to %s; nothing ran", cause, id)
	case errors.Is(err, protocol.ErrNotSent):
		return fleet.Errorf(protocol.CodeNotStarted, "the connection to %s ended before the request was sent; nothing ran; it's safe to call again", id)
	case errors.Is(err, protocol.ErrNoAnswer):
		return fleet.Errorf(protocol.CodeOutcomeUnknown, "%s, but %s did not confirm that it ended. Check on the host", f.why(), id)
	default:
		return fleet.Wrap(protocol.CodeOutcomeUnknown, err, "the call to %s ended without an answer: it may have run. Check on the host before calling again", id)
	}
}

func (f *flight) why() string {
	if cause := context.Cause(f.ctx); cause != nil {
		return cause.Error()
	}
	return errDeadline.Error()
}

// agentError takes over an agent's error as far as an agent may say such a thing.
func (f *flight) agentError(e *protocol.Error) (protocol.Code, string, string) {
	code := word.CodeOf(e.Code)
	if code == protocol.CodeCancelled && f.late { // by the server for its deadline, or by the agent itself
		code = protocol.CodeTimedOut
	}
	says := word.Says(f.target.agent.ID, e.Message)
	if code == protocol.CodeInternal { // a defect there is none here
		return code, fleet.ReasonAgentFault, fmt.Sprintf("the agent on %s failed inside: %s", f.target.agent.ID, says)
	}
	return code, word.Reason(e.Reason), says
}

var errBroke = errors.New("the store failed inside")

// record makes the outcome durable. While the store can't, the call stays open: nobody is
// told an end that isn't recorded. At the server's end it's left for the next start, and
// record is false. An outcome that the store panicked at is tried again without what came from
// the host.
func (d *Dispatcher) record(f *flight, out *fleet.Outcome) bool {
	ctx, span := d.trace.Start(context.WithoutCancel(f.ctx), tracing.Internal, "record outcome")
	defer span.End()
	if out.Result != nil {
		out.Salt = commit.Salt()
		out.Commitment = commit.Of(out.Salt, out.Result)
	}
	wait := 50 * time.Millisecond
	for {
		var err error
		if d.contained(f, func() { err = d.db.RecordOutcome(ctx, *out) }) {
			*out, err = d.outcome(f, nil, f.broken()), errBroke
		}
		if err == nil {
			return true
		}
		if errors.Is(err, store.ErrAlreadyFinal) { // the record's word is the only one
			d.stands(ctx, f, out)
			return false
		}
		if !f.sent && fleet.AsError(err).Code == protocol.CodeNotFound { // a fault kept its intent from the record
			d.Refuse(f.who, fleet.Refusal{Client: f.client, Edge: f.edge, Tool: f.target.def.Name, Agent: string(f.target.agent.ID), Code: out.Code, Message: out.Message})
			return true
		}
		d.logOf(f).Error("an outcome could not be recorded; trying again", "call", f.id, "err", err)
		select {
		case <-time.After(wait):
			wait = min(2*wait, 5*time.Second)
		case <-d.gone: // the agent keeps its result, and the next process asks for it
			return false
		}
	}
}

// stands logs that the record has an outcome of the call, as when another replica took it over:
// an error where it contradicts what came here. That nothing is known here contradicts nothing.
func (d *Dispatcher) stands(ctx context.Context, f *flight, out *fleet.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	log := d.logOf(f).With("call", f.id, "this", out.State)
	switch call, err := d.db.Call(ctx, f.id); {
	case err != nil:
		log.Warn("a call's outcome stands in the record already; whether it's this one can't be read", "err", err)
	case out.State == fleet.OutcomeUnknown, call.State == out.State && call.Code == out.Code && (call.Result == nil || bytes.Equal(call.Result, out.Result)):
		log.Debug("a call's outcome stands in the record already", "recorded", call.State)
	default:
		log.Error("a call's outcome stands in the record already, and what came now is another; the record's counts", "recorded", call.State)
	}
}

// recorded is what the record says of a call whose outcome didn't come from here; while
// nobody can read it, the call is as open as before.
func (d *Dispatcher) recorded(f *flight) Result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), 5*time.Second)
	defer cancel()
	call, err := d.db.Call(ctx, f.id)
	if err != nil {
		return f.standing()
	}
	return d.resultOf(call, false)
}

// resultOf is a recorded call as its callers see it.
func (d *Dispatcher) resultOf(c *fleet.Call, joined bool) Result {
	runAs := ""
	if a := d.db.Snapshot().Agents[c.Agent]; a != nil {
		runAs = a.Facts.RunAs
	}
	return Result{
		CallID: c.ID, Agent: c.Agent, RunAs: runAs, Tool: c.Tool, State: c.State, Output: jsontext.Value(c.Result),
		Err: errorOf(c.Code, c.Reason, c.Message), Joined: joined, CreatedAt: c.CreatedAt, FinishedAt: c.FinishedAt,
		QueuedUntil: c.QueueUntil, Evidence: c.Evidence, CancelAt: c.CancelAt, CancelBy: c.CancelBy,
	}
}

func errorOf(code protocol.Code, reason, message string) *fleet.Error {
	if code == "" {
		return nil
	}
	return &fleet.Error{Code: code, Reason: reason, Message: message}
}

// exitCode takes the exit code out of a command tool's result.
func exitCode(def *capability.Definition, result []byte) *int {
	if def.Render != capability.RenderProcess {
		return nil
	}
	var out struct {
		ExitCode *int `json:"exit_code"`
	}
	_ = json.Unmarshal(result, &out) // what isn't of this form has none
	if out.ExitCode != nil && !word.SaneExit(*out.ExitCode) {
		return nil
	}
	return out.ExitCode
}
