package run

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
)

// Limits of one agent.
const (
	// MaxCalls is how many calls run at once; one more is refused with rate_limited, busy.
	MaxCalls = 64
	// grace is how long a capability that doesn't return is waited for after its call's
	// end; under protocol.CancelGrace, so that the server still hears of it.
	grace = 12 * time.Second
	// every is the time between two progress frames of a call.
	every = 5 * time.Second
)

// reasonJournal refines not_started: the journal took no entry.
const reasonJournal = "journal"

// ErrDeadline is the cause of a capability's context when its call's time has passed.
var ErrDeadline = errors.New("the call's time limit has passed")

// Identity is whom requests must be sealed for.
type Identity struct {
	Fingerprint []byte // of this agent's key
	Generation  int64
}

// Runner executes requests. It implements mux.Handler and mux.Resumer; one runner serves
// all connections of a process, one after the other, so that a call stays executed once
// across reconnects, and its journal keeps it so across restarts.
type Runner struct {
	reg     *Registry
	id      Identity
	log     *slog.Logger
	journal *journal.Journal
	slots   chan struct{}
	// stopping ends every call when the agent stops.
	stopping context.Context
	stop     context.CancelCauseFunc
	// awake knows whether this process was stopped.
	awake awake

	mu      sync.Mutex
	live    map[[16]byte]*flight // taken up and not ended
	arrived recent               // what came lately, also what was refused
	denied  recent               // what the server was told will never start
	kept    kept
	pruning bool // a timer for kept is set
}

// New makes a runner for the capabilities in reg. With a nil journal it remembers calls in
// memory alone.
func New(reg *Registry, id Identity, j *journal.Journal, log *slog.Logger) *Runner {
	if j == nil {
		j = journal.Memory()
	}
	r := &Runner{reg: reg, id: id, log: log, journal: j, slots: make(chan struct{}, MaxCalls), live: map[[16]byte]*flight{}, awake: awake{now: steady}}
	r.stopping, r.stop = context.WithCancelCause(context.Background())
	return r
}

// errStops ends what runs when the agent stops.
var errStops = &mux.CancelError{Reason: "the agent stops"}

// Shutdown ends the calls that run, as a cancel would, and refuses new ones. It returns
// when all have ended, or with ctx, and tells how many there were.
func (r *Runner) Shutdown(ctx context.Context) (ended int) {
	ended = len(r.slots)
	r.stop(errStops)
	for range MaxCalls {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			r.log.Warn("stopping while calls are still being ended")
			return ended
		}
	}
	return ended
}

var (
	_ mux.Handler = (*Runner)(nil)
	_ mux.Resumer = (*Runner)(nil)
)

// Handle executes one request, at most once per call id, and only when it's sealed for this
// agent's key. A cut connection says nothing of what the caller wants, so the work goes on
// to its deadline, as it should on a host whose network flickers; its response is kept for
// Rejoin. What passes bytes over the connection ends with it.
func (r *Runner) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	f := r.newFlight(ctx, req, w)
	if err := r.admit(f); err != nil {
		f.cancel(nil)
		return f.response(nil, err)
	}
	if err := r.tryBegin(f); err != nil {
		r.finish(f, f.response(nil, err), nil)
		return f.resp
	}
	return r.wait(ctx, f, w)
}

// tryBegin is begin, whose panic ends the call that didn't begin by it.
func (r *Runner) tryBegin(f *flight) (err error) {
	defer fault.Catch(func(p *fault.Panic) {
		f.broke(p)
		if !f.begun.Load() {
			err = protocol.Errorf(protocol.CodeNotStarted, "the agent failed inside before it began this; nothing was started; the agent's log says more")
		}
	})
	return r.begin(f)
}

// admit takes a request up: then it's known, whatever becomes of it, and has one response,
// which is kept.
func (r *Runner) admit(f *flight) error {
	req := f.req
	seal, err := protocol.UnB64(req.Seal, 32)
	own := protocol.Seal(r.id.Fingerprint, r.id.Generation, req.ID, req.Tool, req.Args)
	if err != nil || subtle.ConstantTimeCompare(seal, own) != 1 {
		f.log.Error("refused: a request that was sealed for another agent, another key of this one, or other arguments")
		return &protocol.Error{Code: protocol.CodeDenied, Reason: protocol.ReasonSeal,
			Message: "this request was not sealed for this agent's present key; nothing was executed"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, written := r.journal.Find(f.id)
	if written || r.live[f.id.Hash] != nil || r.arrived.has(f.id) || r.denied.has(f.id) {
		f.log.Error("refused: this call id was seen before")
		return &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate,
			Message: "a call with this id came before, or its server was told that it never will run; a call is executed at most once"}
	}
	if r.denied.gone.Covers(f.id) {
		return &protocol.Error{Code: protocol.CodeNotStarted, Reason: reasonJournal,
			Message: "this call is so old that the agent can't tell any more whether it has said that it will never run, so nothing was started; send a new one"}
	}
	r.arrived.add(f.id)
	r.live[f.id.Hash] = f
	return nil
}

// begin checks what was taken up and starts it. Nothing has happened on the host when it
// fails.
func (r *Runner) begin(f *flight) error {
	req := f.req
	if name := reserved(req); name != "" {
		return protocol.Errorf(protocol.CodeUnsupported,
			"this agent's version can't honour %q in a request, so nothing was executed; update the agent", name)
	}
	tool, ok := r.reg.tools[req.Tool]
	if !ok {
		return protocol.Errorf(protocol.CodeUnsupported, "this agent doesn't offer %s here: its version or its system lacks it", shown(req.Tool))
	}
	if req.DeadlineMS < 1 || req.DeadlineMS > protocol.MaxDeadlineMS {
		return protocol.Errorf(protocol.CodeBadArgs, "deadline_ms must be 1 to %d", protocol.MaxDeadlineMS)
	}
	fn, err := tool.fn(req.Args)
	if err != nil {
		return err
	}
	if err := r.barred(f); err != nil {
		return err
	}
	select {
	case r.slots <- struct{}{}:
	default:
		return &protocol.Error{Code: protocol.CodeRateLimited, Reason: protocol.ReasonBusy,
			Message: fmt.Sprintf("%d calls run on this agent already, which is its limit of calls at once; nothing was started; try again when one has ended", MaxCalls)}
	}
	begun := false
	defer func() {
		if !begun {
			<-r.slots
		}
	}()
	if err := r.enter(f); err != nil {
		return err
	}
	r.launch(f, fn)
	begun = true
	return nil
}

// enter writes the call into the journal: only then may it start.
func (r *Runner) enter(f *flight) error {
	if err := r.journal.Start(f.id, f.req.Tool, false); err != nil {
		f.log.Error("refused: the journal takes no entry", "err", err)
		return &protocol.Error{Code: protocol.CodeNotStarted, Reason: reasonJournal,
			Message: "the agent could not write this call into its journal, so nothing was started; look at the disk of its state folder: the agent's log says more"}
	}
	// The disk may have kept it waiting.
	err := r.barred(f)
	if err != nil {
		if werr := r.journal.Withdraw(f.id); werr != nil {
			f.log.Error("the journal can't be written", "err", werr)
		}
	}
	return err
}

// barred tells why a call mustn't start now. One whose connection is gone isn't begun: its
// server asks what became of it, and not having begun is the better answer.
func (r *Runner) barred(f *flight) error {
	switch cause := context.Cause(f.conn); {
	case IsCut(cause):
		return protocol.Errorf(protocol.CodeNotStarted, "the connection ended first; nothing was started")
	case cause != nil:
		return Ended(f.conn, "nothing was started")
	case f.ctx.Err() != nil: // cancelled over a later connection
		return Ended(f.ctx, "nothing was started")
	case r.stopping.Err() != nil:
		return protocol.Errorf(protocol.CodeNotStarted, "the agent is stopping; nothing was started")
	case f.expired():
		return protocol.Errorf(protocol.CodeExpired, "the time within which it could start passed before the agent could start it; nothing was started")
	case f.age().Milliseconds() >= f.req.DeadlineMS:
		return protocol.Errorf(protocol.CodeTimedOut, "its time limit passed before the agent could start it; nothing was started")
	}
	return nil
}

// reserved names the first member that this version knows of and can't honour.
func reserved(req *protocol.Request) string {
	switch {
	case req.Approval != nil:
		return "approval"
	case req.ApprovalRequired != nil:
		return "approval_required"
	case req.ToolVersion != 0:
		return "tool_version"
	}
	return ""
}

// IsCut tells that a context ended with its connection, which says nothing of the call.
// When the server ended the connection because this agent, or this key of it, was removed,
// what it runs has lost its ground, and that's a cancel.
func IsCut(cause error) bool {
	var ce *protocol.CloseError
	return errors.Is(cause, protocol.ErrCut) && (!errors.As(cause, &ce) || ce.Code != protocol.CloseRemoved)
}

func shown(name string) string { return Clean(strings.TrimSpace(name), 64) }
