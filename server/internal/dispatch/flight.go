package dispatch

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// flight is a call under way in this process.
type flight struct {
	id      fleet.CallID
	target  *target
	who     fleet.Principal
	created time.Time
	client  string

	ctx    context.Context
	cancel context.CancelCauseFunc
	late   bool // the server's own deadline passed; fly's goroutine alone

	done   chan struct{} // closed after result is set
	result Result

	mu       sync.Mutex
	holders  int // callers that haven't left; a detached one holds for ever
	watchers []func(Update)
	last     string
	started  bool
}

func newFlight(base context.Context, t *target, in fleet.Intent) *flight {
	f := &flight{id: in.CallID, target: t, who: in.Principal, created: in.At, client: in.Client, done: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(base)
	return f
}

// hold counts a caller in. Only leave takes it out again.
func (f *flight) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holders++
}

// leave counts out a caller whose end cancels, and tells whether it was the last one: then
// the call is cancelled. Who drops out doesn't end what another still waits for.
func (f *flight) leave() (last bool) {
	f.mu.Lock()
	f.holders--
	last = f.holders == 0
	f.mu.Unlock()
	if last {
		f.cancel(errGone)
	}
	return last
}

// watch adds a listener and tells it where the call stands.
func (f *flight) watch(fn func(Update)) {
	if fn == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers = append(f.watchers, fn)
	fn(Update{CallID: f.id, Agent: f.target.agent.ID, Message: f.last})
}

func (f *flight) news(p protocol.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = true
	f.last = text.Line(p.Message, 512)
	for _, fn := range f.watchers {
		fn(Update{CallID: f.id, Agent: f.target.agent.ID, Message: f.last})
	}
}

// standing is where the call is now: its end, or that it's still open.
func (f *flight) standing() Result {
	select {
	case <-f.done:
		return f.result
	default:
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	state := fleet.Dispatched
	if f.started {
		state = fleet.Running
	}
	return Result{
		CallID: f.id, Agent: f.target.agent.ID, RunAs: f.target.agent.Facts.RunAs, Tool: f.target.def.Name,
		State: state, CreatedAt: f.created,
	}
}

// fly does steps 6 to 8: route, call, record the outcome; then the answer may go out.
func (d *Dispatcher) fly(f *flight, who fleet.Principal, req Request, policyMoved bool) {
	defer d.wg.Done()
	defer f.cancel(nil)
	resp, err := d.send(f, who, req, policyMoved)
	out := d.outcome(f, resp, err)
	f.result = f.standing()
	d.obs.Call(req.Edge, f.target.def.Name, string(out.State), out.At.Sub(f.created))
	if !d.record(f, out) {
		f.result = d.recorded(f)
	} else {
		f.result.State, f.result.Output, f.result.FinishedAt = out.State, out.Result, out.At
		f.result.Err = errorOf(out.Code, out.Reason, out.Message)
	}
	d.mu.Lock()
	delete(d.open, f.id)
	d.mu.Unlock()
	close(f.done)
}

// send routes the call and makes it. Its error, where there's no response, is a
// *fleet.Error, or one of the tunnel's.
func (d *Dispatcher) send(f *flight, who fleet.Principal, req Request, policyMoved bool) (*protocol.Response, error) {
	t := f.target
	if policyMoved {
		if err := d.again(f, who); err != nil {
			return nil, err
		}
	}
	caller, ok := d.router.Route(t.agent.ID, t.agent.Generation)
	if !ok {
		return nil, d.offline(d.db.Snapshot(), t.agent)
	}
	frame := &protocol.Request{
		Type: protocol.TypeRequest, ID: string(f.id), Tool: t.def.Name, Args: t.args,
		Seal:       protocol.B64(protocol.Seal(t.agent.Fingerprint, t.agent.Generation, string(f.id), t.def.Name, t.args)),
		Caller:     who.Caller(text.Line(req.Client, protocol.MaxName)),
		DeadlineMS: t.limit.Milliseconds(), Progress: req.Progress != nil,
	}
	// The agent keeps the deadline; this one is for an agent that doesn't.
	ctx, stop := context.WithTimeoutCause(f.ctx, t.limit+5*time.Second, errDeadline)
	defer stop()
	resp, err := caller.Call(ctx, frame, mux.Exchange{Progress: f.news})
	f.late = errors.Is(context.Cause(ctx), errDeadline)
	return resp, err
}

// again decides anew when the policy changed between the decision and the durable intent:
// what was revoked in between doesn't start.
func (d *Dispatcher) again(f *flight, who fleet.Principal) error {
	if err := d.db.Refresh(f.ctx); err != nil {
		return fleet.Wrap(protocol.CodeUnavailable, err, "the policy could not be read; nothing was started")
	}
	snap, t := d.db.Snapshot(), f.target
	agent := snap.Agents[t.agent.ID]
	if authz.Decide(who, t.def, agent) != "" {
		return unknownAgent(snap, who, string(t.agent.ID))
	}
	if agent.Generation != t.agent.Generation {
		return fleet.Errorf(protocol.CodeOffline, "agent %s was given a new key at this moment; nothing was sent; call again", agent.ID)
	}
	if !d.alive(who.ID) {
		return fleet.Errorf(protocol.CodeUnauthenticated, "the token was revoked; nothing was started")
	}
	return nil
}

// outcome turns what came back into the one outcome.
func (d *Dispatcher) outcome(f *flight, resp *protocol.Response, err error) fleet.Outcome {
	out := fleet.Outcome{CallID: f.id, At: time.Now()}
	if err != nil {
		fe := f.failure(err)
		out.Code, out.Reason, out.Message = fe.Code, fe.Reason, fe.Message
		out.State = fleet.StateOf(fe.Code)
		if _, refused := errors.AsType[*fleet.Error](err); refused {
			out.State = fleet.NotStarted
		}
		return out
	}
	out.TookUS = max(resp.TookUS, 0)
	if len(resp.Result) > 0 {
		norm, nerr := f.target.def.Normalize(resp.Result)
		if nerr != nil {
			d.log.Warn("an agent's result doesn't fit its tool", "agent", f.target.agent.ID, "tool", f.target.def.Name, "call", f.id)
			fe := fleet.AsError(nerr)
			out.Code, out.Reason, out.Message, out.State = fe.Code, fe.Reason, fe.Message, fleet.Failed
			return out
		}
		out.Result = norm
		out.ExitCode = exitCode(f.target.def, norm)
	}
	if resp.Error != nil {
		out.Code, out.Reason, out.Message = f.agentError(resp.Error)
	} else if len(resp.Result) == 0 {
		out.Code, out.Reason, out.Message = protocol.CodeToolFailed, "bad_result", "the agent answered without a result"
	}
	out.State = fleet.StateOf(out.Code)
	if out.Code == protocol.CodeRateLimited {
		out.State = fleet.NotStarted // the agent was busy
	}
	return out
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
	case errors.Is(err, protocol.ErrCut):
		return fleet.Errorf(protocol.CodeOutcomeUnknown, "the connection to %s ended after the request was sent: it may have run, run in part, or not at all. Check on the host before calling again", id)
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
	msg := text.Line(e.Message, 2048)
	if msg == "" {
		msg = "the agent gave no reason"
	}
	code := e.Code
	switch code {
	case protocol.CodeBadArgs, protocol.CodeUnsupported, protocol.CodeDenied, protocol.CodeToolFailed, protocol.CodeTimedOut,
		protocol.CodeNotStarted, protocol.CodeOutcomeUnknown, protocol.CodeConflict, protocol.CodeTooLarge, protocol.CodeRateLimited, protocol.CodeExpired, protocol.CodeInternal:
	case protocol.CodeCancelled: // by the server, its deadline included, or by the agent itself
		if f.late {
			code = protocol.CodeTimedOut
		}
	default:
		code = protocol.CodeToolFailed
	}
	reason := e.Reason
	if len(reason) > 40 || strings.ContainsFunc(reason, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		reason = "other"
	}
	return code, reason, msg
}

// record makes the outcome durable. While the store can't, the call stays open: nobody is
// told an end that isn't recorded. At the server's end it's left for the next start, and
// record is false.
func (d *Dispatcher) record(f *flight, out fleet.Outcome) bool {
	if out.Result != nil {
		out.Salt = newSalt()
		out.Commitment = commit(out.Salt, out.Result)
	}
	wait := 50 * time.Millisecond
	for {
		err := d.db.RecordOutcome(context.WithoutCancel(f.ctx), out)
		if err == nil {
			return true
		}
		if errors.Is(err, store.ErrAlreadyFinal) { // the record's word is the only one
			d.log.Error("a call's outcome stands in the record already", "call", f.id, "this", out.State)
			return false
		}
		d.log.Error("an outcome could not be recorded; trying again", "call", f.id, "err", err)
		select {
		case <-time.After(wait):
			wait = min(2*wait, 5*time.Second)
		case <-d.base.Done():
			return false
		}
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
	_ = json.Unmarshal(result, &out) // it was just written by Normalize
	return out.ExitCode
}
