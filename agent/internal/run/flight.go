package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
)

// flight is one call that was taken up, until its response is made. It isn't bound to the
// connection that it came over.
type flight struct {
	req  *protocol.Request
	id   journal.ID
	came time.Time
	log  *slog.Logger
	// read is came by awake's clock, and lain how long before it may have come.
	awake      *awake
	read, lain time.Duration

	conn context.Context // of the connection that it came over
	work *mux.Work       // its way back over that connection

	call      Call
	ctx       context.Context // of the work; its deadline apart
	cancel    context.CancelCauseFunc
	streaming atomic.Bool // it passes bytes over its connection
	sending   atomic.Bool // a file, to the caller
	begun     atomic.Bool // it isn't withdrawn any more

	// done is closed when resp is there: the work has ended. late is closed when the work
	// hasn't ended though it was told to; then overdue is what there's to say.
	done, late    chan struct{}
	resp, overdue *protocol.Response
}

func (r *Runner) newFlight(ctx context.Context, req *protocol.Request, w *mux.Work) *flight {
	f := &flight{req: req, id: journal.IDOf(req.ID), came: time.Now(), awake: &r.awake, read: r.awake.now(), lain: r.awake.lain(), conn: ctx, work: w, done: make(chan struct{}), late: make(chan struct{}),
		log: r.log.With("call", req.ID, "tool", req.Tool, "principal", req.Caller.Principal)}
	f.call.ID, f.call.Caller, f.call.journal, f.call.flight = req.ID, req.Caller, r.journal, f
	if protocol.ValidTraceparent(req.Traceparent) { // nothing depends on it, so a bad one is none
		f.call.Traceparent = req.Traceparent
	}
	f.ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return f
}

// launch runs the capability in a slot that's taken already.
func (r *Runner) launch(f *flight, fn func(context.Context, *Call) (any, error)) {
	unstop := context.AfterFunc(r.stopping, func() { f.cancel(context.Cause(r.stopping)) })
	// The deadline is kept by the monotonic clock.
	left := time.Duration(f.req.DeadlineMS)*time.Millisecond - time.Since(f.came)
	ctx, expire := context.WithTimeoutCause(f.ctx, left, ErrDeadline)
	onTime := context.AfterFunc(ctx, func() { f.overtime(ctx) })
	f.begun.Store(true)
	go func() {
		out, err := f.run(ctx, fn)
		onTime()
		unstop()
		expire()
		resp := f.respond(out, err)
		// From here on nothing is contained: a journal or a book of calls that was left halfway
		// could have a call run twice, and a new process reads what is on the disk.
		if err := r.journal.End(f.id, exitOf(out)); err != nil {
			f.log.Error("the journal can't be written; after a restart this call counts as lost", "err", err)
		}
		r.finish(f, resp, func() { <-r.slots })
	}()
}

// run calls the capability; a panic fails its call alone.
func (f *flight) run(ctx context.Context, fn func(context.Context, *Call) (any, error)) (out any, err error) {
	defer fault.Catch(func(p *fault.Panic) { out, err = nil, f.broke(p) })
	return fn(ctx, &f.call)
}

// respond is response for a call that ran; its result may be such that it can't be encoded.
func (f *flight) respond(out any, err error) (resp *protocol.Response) {
	defer fault.Catch(func(p *fault.Panic) { resp = f.response(nil, f.broke(p)) })
	return f.response(out, err)
}

// broke tells of a panic of the call's and is its end. What only reads has failed; of anything
// else nobody knows what it has done.
func (f *flight) broke(p *fault.Panic) error {
	f.log.Error("a fault inside was kept to one call", "panic", p.What, "stack", p.Stack)
	if def := capability.Find(f.req.Tool); def != nil && def.Effect == capability.ReadOnly {
		return protocol.Errorf(protocol.CodeInternal, "the capability failed inside; the agent's log says more")
	}
	return protocol.Errorf(protocol.CodeOutcomeUnknown, "the capability failed inside: it may have done its work, a part of it, or nothing; the agent's log says more")
}

// exitOf is the exit code of a command that ended by itself, for the journal.
func exitOf(out any) *int {
	if p, ok := out.(capability.ProcessOut); ok && p.ExitCode >= 0 {
		return &p.ExitCode
	}
	return nil
}

// overtime waits, once the call was told to end, for the capability to return, and says
// what's known when it doesn't.
func (f *flight) overtime(ctx context.Context) {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-timer.C:
		f.log.Error("the capability didn't end with its call", "cause", context.Cause(ctx))
		f.overdue = f.response(nil, protocol.Errorf(protocol.CodeOutcomeUnknown,
			"it didn't end within %d s of being told to: the host may be stuck on a disk or a network file system, and it may still take effect", int(grace.Seconds())))
		close(f.late)
	}
}

// finish publishes and keeps the response of a call that was taken up. release, if not
// nil, gives its slot back: before the answer, so that whoever gets that can use the slot.
func (r *Runner) finish(f *flight, resp *protocol.Response, release func()) {
	f.resp = resp
	f.cancel(nil)
	r.keep(f)
	if release != nil {
		release()
	}
	close(f.done)
}

func (r *Runner) keep(f *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, f.id.Hash)
	r.hold(f.id, f.req.Caller.Principal, f.forLater(f.resp))
}

// hold keeps a response for a while. r.mu is held.
func (r *Runner) hold(id journal.ID, who string, resp *protocol.Response) {
	r.kept.put(id, who, resp)
	if !r.pruning {
		r.pruning = true
		time.AfterFunc(keptTime, r.prune)
	}
}

// prune lets go of responses whose time is over, as long as there are any.
func (r *Runner) prune() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.kept.prune()
	if r.pruning = !next.IsZero(); r.pruning {
		time.AfterFunc(time.Until(next), r.prune)
	}
}

// wait waits for a call's end on behalf of one connection: it passes progress on, and a
// cancel from there to the call. When the connection ends, so does the wait; nobody hears
// the response then.
func (r *Runner) wait(ctx context.Context, f *flight, w *mux.Work) *protocol.Response {
	if f.req.Progress {
		tell, told := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(told)
			defer fault.Catch(func(p *fault.Panic) { _ = f.broke(p) }) // it costs the news alone
			report(&f.call, w.Progress, tell)
		}()
		defer func() { close(tell); <-told }()
	}
	select {
	case <-f.done:
		return f.resp
	case <-f.late:
		return f.latest()
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	if IsCut(cause) {
		if ctx == f.conn && f.streaming.Load() {
			f.cancel(cause)
		}
		return &protocol.Response{Error: protocol.Errorf(protocol.CodeOutcomeUnknown, "the connection ended; the call goes on to its deadline")}
	}
	f.cancel(cause)
	select {
	case <-f.done:
		return f.resp
	case <-f.late:
		return f.latest()
	}
}

// latest is what there's to say of a call that was late: its response if it came after all.
func (f *flight) latest() *protocol.Response {
	select {
	case <-f.done:
		return f.resp
	default:
		return f.overdue
	}
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

// response makes a call's response and logs its end.
func (f *flight) response(out any, err error) *protocol.Response {
	resp := &protocol.Response{Type: protocol.TypeResponse, ID: f.req.ID}
	if out != nil {
		b, jerr := json.Marshal(out)
		switch {
		case jerr != nil:
			f.log.Error("result can't be encoded", "err", jerr)
			err = protocol.Errorf(protocol.CodeInternal, "the result could not be encoded; the agent's log says more")
		case len(b) > protocol.MaxFrame-4096:
			err = protocol.Errorf(protocol.CodeTooLarge, "the result has %d bytes, more than an answer holds; ask for less at once", len(b))
		default:
			resp.Result = b
		}
	}
	if err != nil {
		resp.Error = wire(err, f.log)
	}
	if resp.Error != nil && resp.Result != nil && neverRan(resp.Error.Code) {
		// Of two words that contradict each other neither is believed.
		f.log.Error("the capability said that nothing ran, and gave a result", "code", resp.Error.Code)
		resp.Error = protocol.Errorf(protocol.CodeOutcomeUnknown, "the agent's own words contradict each other: a result, and %q", resp.Error.Message)
	}
	took := time.Since(f.came)
	resp.TookUS = max(1, took.Microseconds())
	attrs := []any{"took", took.Round(100 * time.Microsecond)}
	if IsCut(context.Cause(f.conn)) {
		attrs = append(attrs, "cut", true)
	}
	if resp.Error != nil {
		attrs = append(attrs, "code", resp.Error.Code, "reason", resp.Error.Reason)
	}
	f.log.Info("call", attrs...)
	return resp
}

// neverRan tells that a code says for sure that nothing was executed.
func neverRan(code protocol.Code) bool {
	switch code {
	case protocol.CodeNotStarted, protocol.CodeExpired, protocol.CodeDenied, protocol.CodeUnsupported, protocol.CodeRateLimited, protocol.CodeBadArgs:
		return true
	}
	return false
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
		return &protocol.Error{Code: protocol.CodeCancelled, Reason: stopReason(ce), Message: fmt.Sprintf("cancelled (%s); %s", Clean(ce.Reason, 200), what)}
	}
	if IsCut(cause) {
		return protocol.Errorf(protocol.CodeCancelled, "the connection that its bytes went over was cut; %s", what)
	}
	return protocol.Errorf(protocol.CodeCancelled, "cancelled; %s", what)
}

// stopReason tells a server, which asked for no cancel, that there was one.
func stopReason(ce *mux.CancelError) string {
	if ce == errStops {
		return protocol.ReasonAgentStops
	}
	return ""
}

// wire makes any error fit to travel.
func wire(err error, log *slog.Logger) *protocol.Error {
	var pe *protocol.Error
	var ce *mux.CancelError
	switch {
	case errors.As(err, &pe):
		return pe
	case errors.As(err, &ce):
		return &protocol.Error{Code: protocol.CodeCancelled, Reason: stopReason(ce), Message: Clean(ce.Error(), 250) + ", and the work was ended"}
	case errors.Is(err, ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return protocol.Errorf(protocol.CodeTimedOut, "the time limit passed and the work was ended")
	case errors.Is(err, context.Canceled), errors.Is(err, protocol.ErrCut):
		return protocol.Errorf(protocol.CodeCancelled, "cancelled, and the work was ended")
	}
	log.Error("capability failed inside", "err", err)
	return protocol.Errorf(protocol.CodeInternal, "the capability failed inside; the agent's log says more")
}
