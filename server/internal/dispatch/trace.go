package dispatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// What spans of calls say. Arguments, results and messages aren't among it: they may hold
// anything.
const (
	attrCall    = "drover.call.id"
	attrAgent   = "drover.agent.id"
	attrTool    = "drover.tool"
	attrEdge    = "drover.edge"
	attrOutcome = "drover.outcome" // the call's final state; "open" when it was left to others
	attrCode    = "drover.error.code"
	attrJoined  = "drover.joined"
	attrAdopted = "drover.adopted"
	attrTook    = "drover.agent.took_us" // from receipt to outcome, by the agent's own clock
)

// intend records the intent.
func (d *Dispatcher) intend(ctx context.Context, in fleet.Intent) (store.IntentResult, error) {
	ctx, span := d.trace.Start(ctx, tracing.Internal, "record intent")
	got, err := d.db.RecordIntent(ctx, in)
	// It's on record: no fault of what shows it may keep it from its end.
	d.aside("a span", in.Agent, in.CallID, func() { failed(span, err); span.End() })
	return got, err
}

// turned ends the span of a call that was refused, or joined an earlier one.
func turned(s tracing.Span, joined *fleet.Call, err error) {
	if joined != nil {
		s.Set(attrCall, string(joined.ID))
		s.Set(attrJoined, "true")
	}
	failed(s, err)
	s.End()
}

// failed marks a span by an error's code.
func failed(s tracing.Span, err error) {
	if err != nil {
		code := string(fleet.AsError(err).Code)
		s.Set(attrCode, code)
		s.Fail(code)
	}
}

// traced makes the span in ctx the flight's: what it does lies below it, and its end ends it.
func (f *flight) traced(ctx context.Context) {
	f.span = tracing.Of(ctx)
	f.ctx = tracing.With(f.ctx, f.span)
	f.span.Name("call " + f.target.def.Name)
	f.span.Set(attrCall, string(f.id))
	f.span.Set(attrAgent, string(f.target.agent.ID))
	f.span.Set(attrTool, f.target.def.Name)
	f.span.Set(attrEdge, f.edge)
}

// landed ends the flight's span.
func (f *flight) landed() {
	outcome := "open"
	if f.result.State.Final() {
		outcome = string(f.result.State)
	}
	f.span.Set(attrOutcome, outcome)
	if f.result.Err != nil {
		f.span.Set(attrCode, string(f.result.Err.Code))
		f.span.Fail(string(f.result.Err.Code))
	}
	f.span.End()
}

// logOf is the log for what concerns one call.
func (d *Dispatcher) logOf(f *flight) *slog.Logger {
	if id := f.span.TraceID(); id != "" {
		return d.log.With("trace_id", id)
	}
	return d.log
}

// warn writes a line that an agent has caused by what it answered: a few a minute.
func (d *Dispatcher) warn(f *flight, what string, args ...any) {
	if agent := f.target.agent.ID; d.quiet.Allow(what, string(agent), time.Now()) {
		d.logOf(f).Warn(what, append([]any{"agent", agent, "tool", f.target.def.Name, "call", f.id}, args...)...)
	}
}

// Remote is a Caller whose agent is connected to another replica: its Call makes the spans of
// the way there.
type Remote interface {
	Caller
	// Replica names the other one.
	Replica() string
}

// tunnelled makes the span of a request to an agent that is connected here.
func (d *Dispatcher) tunnelled(ctx context.Context, c Caller) (context.Context, tracing.Span) {
	if _, remote := c.(Remote); remote {
		return ctx, tracing.Span{}
	}
	return d.trace.Start(ctx, tracing.Client, "tunnel request")
}
