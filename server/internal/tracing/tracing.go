// Package tracing makes the spans of requests and calls and sends them to an OpenTelemetry
// collector over OTLP/HTTP, when the standard OTEL_ variables name one. Without that a Tracer
// is nil, and all of it costs nothing. OpenTelemetry's types stop here.
//
// A trace only shows what happened. Its ids come from clients, so they decide nothing but
// where spans are shown, and a client can't have more of them recorded than it would have
// without: see sampler.
package tracing

import (
	"context"
	"encoding/hex"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/drover-fleet/drover/protocol"
)

// Kind is a span's place between two programs.
type Kind int

// The kinds.
const (
	Internal = Kind(trace.SpanKindInternal)
	Server   = Kind(trace.SpanKindServer) // serves what a client asked
	Client   = Kind(trace.SpanKindClient) // asks, and waits for the answer
)

// Tracer makes spans. A nil Tracer makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	out      *exporter
}

// Span is a piece of work under way. The zero Span is none: its methods do nothing. Values
// are never arguments or results of a call, nor credentials: a collector is another system.
type Span struct{ of trace.Span }

// Start begins a span below the one that ctx carries, or the parent that was set with
// FromClient, FromMessage or FromReplica. The context that it returns carries it.
func (t *Tracer) Start(ctx context.Context, kind Kind, name string) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKind(kind))}
	if o, _ := ctx.Value(originKey{}).(origin); o.around.IsValid() && trace.SpanContextFromContext(ctx).IsRemote() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: o.around}))
	}
	ctx, s := t.tracer.Start(ctx, name, opts...)
	return ctx, Span{s}
}

// Set notes a value. Empty ones are left out.
func (s Span) Set(name, value string) {
	if s.of != nil && value != "" && s.of.IsRecording() {
		s.of.SetAttributes(attribute.String(name, value))
	}
}

// SetInt notes a number.
func (s Span) SetInt(name string, value int64) {
	if s.of != nil && s.of.IsRecording() {
		s.of.SetAttributes(attribute.Int64(name, value))
	}
}

// Name renames the span.
func (s Span) Name(name string) {
	if s.of != nil {
		s.of.SetName(name)
	}
}

// Fail marks the span as failed, for a reason that is one of a bounded set: a code, never a
// text from elsewhere.
func (s Span) Fail(reason string) {
	if s.of != nil {
		s.of.SetStatus(codes.Error, reason)
	}
}

// End ends the span. It's called once.
func (s Span) End() {
	if s.of != nil {
		s.of.End()
	}
}

// TraceID is the trace's id for logs, 32 hexadecimal digits; "" for no span.
func (s Span) TraceID() string {
	if s.of == nil || !s.of.SpanContext().IsValid() {
		return ""
	}
	return s.of.SpanContext().TraceID().String()
}

// Traceparent is what the next program is given to go on from this span; "" for no span.
func (s Span) Traceparent() string {
	if s.of == nil || !s.of.SpanContext().IsValid() {
		return ""
	}
	sc := s.of.SpanContext()
	flags := "-00"
	if sc.IsSampled() {
		flags = "-01"
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + flags
}

// Of returns the span that ctx carries.
func Of(ctx context.Context) Span {
	s := trace.SpanFromContext(ctx)
	if !s.SpanContext().IsValid() {
		return Span{}
	}
	return Span{s}
}

// With returns a ctx that carries the span.
func With(ctx context.Context, s Span) context.Context {
	if s.of == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, s.of)
}

// originKey is the key of a parent's origin in a context.
type originKey struct{}

// origin is where the remote parent in a context came from.
type origin struct {
	replica bool
	around  trace.SpanContext // of the HTTP request, when the message within has a parent of its own
}

// Header is W3C's header.
const Header = "Traceparent"

// FromClient takes a request's traceparent as the parent of the next span, if there's exactly
// one and it's well-formed. Anything else is no parent, and no error. tracestate and baggage
// are never read.
func (t *Tracer) FromClient(ctx context.Context, h http.Header) context.Context {
	if t == nil {
		return ctx
	}
	if all := h.Values(Header); len(all) == 1 {
		return remote(ctx, all[0], origin{})
	}
	return ctx
}

// FromMessage takes the traceparent in a message within an HTTP request, such as MCP's _meta,
// as the parent of the next span, which links to the request's own span. It may be anything.
func (t *Tracer) FromMessage(ctx context.Context, traceparent string) context.Context {
	if t == nil {
		return ctx
	}
	return remote(ctx, traceparent, origin{around: trace.SpanContextFromContext(ctx)})
}

// FromReplica takes a traceparent that another replica sent, sealed, as the parent of the
// next span. Whether that's recorded was decided there.
func (t *Tracer) FromReplica(ctx context.Context, traceparent string) context.Context {
	if t == nil {
		return ctx
	}
	return remote(ctx, traceparent, origin{replica: true})
}

func remote(ctx context.Context, traceparent string, o origin) context.Context {
	if !protocol.ValidTraceparent(traceparent) {
		return ctx
	}
	var c trace.SpanContextConfig
	var flags [1]byte
	// ValidTraceparent has looked at the digits.
	_, _ = hex.Decode(c.TraceID[:], []byte(traceparent[3:35]))
	_, _ = hex.Decode(c.SpanID[:], []byte(traceparent[36:52]))
	_, _ = hex.Decode(flags[:], []byte(traceparent[53:]))
	c.TraceFlags, c.Remote = trace.TraceFlags(flags[0])&trace.FlagsSampled, true
	return trace.ContextWithSpanContext(context.WithValue(ctx, originKey{}, o), trace.NewSpanContext(c))
}
