package run

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
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

// ErrDeadline is the cause of a capability's context when its call's time has passed.
var ErrDeadline = errors.New("the call's time limit has passed")

// Identity is whom requests must be sealed for.
type Identity struct {
	Fingerprint []byte // of this agent's key
	Generation  int64
}

// Runner executes requests. It implements mux.Handler; one runner serves all connections
// of a process, one after the other, so that a call stays executed once across reconnects.
type Runner struct {
	reg   *Registry
	id    Identity
	log   *slog.Logger
	mem   *memory
	slots chan struct{}
	boot  string // random, names this process towards the server
	// stopping ends every call when the agent stops.
	stopping context.Context
	stop     context.CancelCauseFunc
}

// New makes a runner for the capabilities in reg.
func New(reg *Registry, id Identity, log *slog.Logger) *Runner {
	r := &Runner{reg: reg, id: id, log: log, mem: newMemory(), slots: make(chan struct{}, MaxCalls), boot: rand.Text()}
	r.stopping, r.stop = context.WithCancelCause(context.Background())
	return r
}

// Shutdown ends the calls that run, as a cancel would, and refuses new ones. It returns
// when all have ended, or with ctx, and tells how many there were.
func (r *Runner) Shutdown(ctx context.Context) (ended int) {
	ended = len(r.slots)
	r.stop(&mux.CancelError{Reason: "the agent stops"})
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

var _ mux.Handler = (*Runner)(nil)

// Handle executes one request, at most once per call id and process, and only when it's
// sealed for this agent's key.
func (r *Runner) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	began := time.Now()
	log := r.log.With("call", req.ID, "tool", req.Tool, "principal", req.Caller.Principal)
	out, err := r.execute(ctx, req, w.Progress, log)
	resp := &protocol.Response{Type: protocol.TypeResponse, ID: req.ID}
	if out != nil {
		b, jerr := json.Marshal(out)
		switch {
		case jerr != nil:
			log.Error("result can't be encoded", "err", jerr)
			err = protocol.Errorf(protocol.CodeInternal, "the result could not be encoded; the agent's log says more")
		case len(b) > protocol.MaxFrame-4096:
			err = protocol.Errorf(protocol.CodeTooLarge, "the result has %d bytes, more than an answer holds; ask for less at once", len(b))
		default:
			resp.Result = b
		}
	}
	if err != nil {
		resp.Error = r.wire(err, log)
	}
	resp.TookUS = max(1, time.Since(began).Microseconds())
	attrs := []any{"took", time.Since(began).Round(100 * time.Microsecond)}
	if resp.Error != nil {
		attrs = append(attrs, "code", resp.Error.Code, "reason", resp.Error.Reason)
	}
	log.Info("call", attrs...)
	return resp
}

// execute checks the request and runs it. Nothing has happened on the host when it fails
// before start.
func (r *Runner) execute(ctx context.Context, req *protocol.Request, progress func(string), log *slog.Logger) (any, error) {
	seal, err := protocol.UnB64(req.Seal, 32)
	own := protocol.Seal(r.id.Fingerprint, r.id.Generation, req.ID, req.Tool, req.Args)
	if err != nil || subtle.ConstantTimeCompare(seal, own) != 1 {
		log.Error("refused: a request that was sealed for another agent, another key of this one, or other arguments")
		return nil, &protocol.Error{Code: protocol.CodeDenied, Reason: protocol.ReasonSeal,
			Message: "this request was not sealed for this agent's present key; nothing was executed"}
	}
	if !r.mem.add(req.ID) {
		log.Error("refused: this call id was seen before")
		return nil, &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate,
			Message: "a call with this id came before; a call is executed at most once"}
	}
	if name := reserved(req); name != "" {
		return nil, protocol.Errorf(protocol.CodeUnsupported,
			"this agent's version can't honour %q in a request, so nothing was executed; update the agent", name)
	}
	tool, ok := r.reg.tools[req.Tool]
	if !ok {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "this agent doesn't offer %s here: its version or its system lacks it", shown(req.Tool))
	}
	if req.DeadlineMS < 1 || req.DeadlineMS > protocol.MaxDeadlineMS {
		return nil, protocol.Errorf(protocol.CodeBadArgs, "deadline_ms must be 1 to %d", protocol.MaxDeadlineMS)
	}
	fn, err := tool.fn(req.Args)
	if err != nil {
		return nil, err
	}
	if errors.Is(context.Cause(ctx), protocol.ErrCut) {
		// A request of a connection that's gone must not begin: the server may have been told
		// by now that it was never seen.
		return nil, protocol.Errorf(protocol.CodeNotStarted, "the connection ended first; nothing was started")
	}
	if ctx.Err() != nil {
		return nil, Ended(ctx, "nothing was started")
	}
	if r.stopping.Err() != nil {
		return nil, protocol.Errorf(protocol.CodeNotStarted, "the agent is stopping; nothing was started")
	}
	select {
	case r.slots <- struct{}{}:
	default:
		return nil, &protocol.Error{Code: protocol.CodeRateLimited, Reason: protocol.ReasonBusy,
			Message: fmt.Sprintf("%d calls run on this agent already; try again when one has ended", MaxCalls)}
	}
	return r.start(ctx, req, fn, progress, log)
}

// reserved names the first member that this version knows of and can't honour.
func reserved(req *protocol.Request) string {
	switch {
	case req.Approval != nil:
		return "approval"
	case req.ApprovalRequired != nil:
		return "approval_required"
	case req.NotAfterMS != 0:
		return "not_after"
	case req.ToolVersion != 0:
		return "tool_version"
	case req.Traceparent != "":
		return "traceparent"
	}
	return ""
}

type outcome struct {
	out any
	err error
}

// start runs the capability in a slot that's taken already.
func (r *Runner) start(parent context.Context, req *protocol.Request, fn func(context.Context, *Call) (any, error), progress func(string), log *slog.Logger) (any, error) {
	ctx, cut, stop := r.lasting(parent, time.Duration(req.DeadlineMS)*time.Millisecond)
	call := &Call{ID: req.ID, Caller: req.Caller}
	done := make(chan outcome, 1)
	r.mem.start(req.ID)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				log.Error("capability panicked", "panic", p, "stack", string(debug.Stack()))
				done <- outcome{err: protocol.Errorf(protocol.CodeInternal, "the capability failed inside; the agent's log says more")}
			}
			stop()
			r.mem.end(req.ID)
			<-r.slots
		}()
		out, err := fn(ctx, call)
		select {
		case <-cut:
			log.Warn("call ended after its connection was cut; the result is dropped", "err", err)
		default:
		}
		done <- outcome{out, err}
	}()
	if req.Progress {
		tell := make(chan struct{})
		told := make(chan struct{})
		go func() { defer close(told); report(call, progress, tell) }()
		defer func() { close(tell); <-told }()
	}
	select {
	case o := <-done:
		return o.out, o.err
	case <-cut:
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown, "the connection ended; the call goes on to its deadline")
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case o := <-done:
		return o.out, o.err
	case <-late.C:
		log.Error("the capability didn't end with its call", "cause", context.Cause(ctx))
		return nil, protocol.Errorf(protocol.CodeOutcomeUnknown,
			"it didn't end within %d s of being told to: the host may be stuck on a disk or a network file system, and it may still take effect", int(grace.Seconds()))
	}
}

// lasting derives the context that a capability gets: it ends at the deadline by the
// monotonic clock (cause ErrDeadline), when the server cancels and when the agent stops
// (a mux.CancelError), but not with the connection; cut is closed then. A cut connection says nothing of what the
// caller wants, so the work goes on to its deadline, as it should on a host whose network
// flickers. Its result is dropped: the server has recorded outcome_unknown, which is final,
// and learns by resume that the call is running or done.
func (r *Runner) lasting(parent context.Context, d time.Duration) (ctx context.Context, cut <-chan struct{}, stop func()) {
	gone := make(chan struct{})
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	unlink := context.AfterFunc(parent, func() {
		cause := context.Cause(parent)
		if errors.Is(cause, protocol.ErrCut) && !removed(cause) {
			close(gone)
		} else {
			cancel(cause)
		}
	})
	stopped := context.AfterFunc(r.stopping, func() { cancel(context.Cause(r.stopping)) })
	ctx, expire := context.WithTimeoutCause(ctx, d, ErrDeadline)
	return ctx, gone, func() { unlink(); stopped(); expire(); cancel(context.Canceled) }
}

// removed tells whether the server ended the connection because this agent, or this key of
// it, was removed: what it runs loses its ground then, unlike with a connection that failed.
func removed(cause error) bool {
	var ce *protocol.CloseError
	return errors.As(cause, &ce) && ce.Code == protocol.CloseRemoved
}

// report sends progress until stop is closed.
func report(c *Call, progress func(string), stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			progress(Clean(c.line(), 512))
		case <-stop:
			return
		}
	}
}

// Ended is the error of a call whose context ended: cancelled or timed_out. what says in
// a clause what became of the work ("the process tree was killed").
func Ended(ctx context.Context, what string) *protocol.Error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrDeadline) || errors.Is(cause, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimedOut, "the time limit passed; %s", what)
	}
	var ce *mux.CancelError
	if errors.As(cause, &ce) && ce.Reason != "" {
		return protocol.Errorf(protocol.CodeCancelled, "cancelled (%s); %s", Clean(ce.Reason, 200), what)
	}
	return protocol.Errorf(protocol.CodeCancelled, "cancelled; %s", what)
}

// wire makes any error fit to travel.
func (r *Runner) wire(err error, log *slog.Logger) *protocol.Error {
	var pe *protocol.Error
	var ce *mux.CancelError
	switch {
	case errors.As(err, &pe):
		return pe
	case errors.As(err, &ce):
		return protocol.Errorf(protocol.CodeCancelled, "%s, and the work was ended", Clean(ce.Error(), 250))
	case errors.Is(err, ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimedOut, "the time limit passed and the work was ended")
	case errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeCancelled, "cancelled, and the work was ended")
	}
	log.Error("capability failed inside", "err", err)
	return protocol.Errorf(protocol.CodeInternal, "the capability failed inside; the agent's log says more")
}

// Boot names this runner's memory of calls: see protocol.Resume.
func (r *Runner) Boot() string { return r.mem.name(r.boot) }

// Fates implements mux.Resumer.
func (r *Runner) Fates(ids []string) protocol.Resume {
	out := protocol.Resume{Type: protocol.TypeResume}
	for _, id := range ids {
		out.States = append(out.States, protocol.ResumeState{ID: id, State: r.mem.fate(id)})
	}
	out.Boot = r.mem.name(r.boot)
	return out
}

// Rejoin implements mux.Resumer.
func (r *Runner) Rejoin(context.Context, string, *mux.Work) *protocol.Response {
	return &protocol.Response{Error: protocol.Errorf(protocol.CodeOutcomeUnknown, "its result isn't kept")}
}

func shown(name string) string { return Clean(strings.TrimSpace(name), 64) }
