package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// Self is what this replica says of itself.
type Self struct {
	Version  string
	Instance string // of this process
}

// New makes the Tracer that the OTEL_ variables of the environment describe: nil, without an
// error, when they name no collector. A variable that can't be honoured is an error: who sets
// it wants it. The collector needn't be there; it's never waited for.
func New(ctx context.Context, self Self, log *slog.Logger) (*Tracer, error) {
	on, err := wanted(os.Getenv)
	if !on || err != nil {
		return nil, err
	}
	sample, err := newSampler(os.Getenv("OTEL_TRACES_SAMPLER"), os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if err != nil {
		return nil, err
	}
	// What the environment says comes later and counts more.
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "drover"),
		attribute.String("service.version", self.Version), attribute.String("service.instance.id", self.Instance)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	client, err := otlptracehttp.New(ctx) // reads the endpoint, headers, certificates and times itself
	if err != nil {
		return nil, fmt.Errorf("the collector of traces: %w", err)
	}
	out := &exporter{to: client, log: log}
	t := &Tracer{out: out, provider: sdk.NewTracerProvider(sdk.WithBatcher(out), sdk.WithSampler(sample), sdk.WithResource(about))}
	t.tracer = t.provider.Tracer("github.com/drover-fleet/drover")
	return t, nil
}

// wanted tells whether traces are to be sent, by the standard variables.
func wanted(env func(string) string) (bool, error) {
	first := func(names ...string) string {
		for _, n := range names {
			if v := strings.TrimSpace(env(n)); v != "" {
				return v
			}
		}
		return ""
	}
	if strings.EqualFold(first("OTEL_SDK_DISABLED"), "true") || first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return false, nil
	}
	switch first("OTEL_TRACES_EXPORTER") {
	case "none":
		return false, nil
	case "", "otlp":
	default:
		return false, errors.New("OTEL_TRACES_EXPORTER must be otlp or none: that's what Drover has")
	}
	if p := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p != "" && p != "http/protobuf" {
		return false, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf: that's what Drover speaks, to a collector's port 4318 as a rule")
	}
	return true, nil
}

// Close sends what is left, as long as ctx lets it, and ends the Tracer.
func (t *Tracer) Close(ctx context.Context) {
	if t != nil {
		_ = t.provider.Shutdown(ctx) // an error is a span that's lost, which the exporter has counted
	}
}

// Stats are counters for metrics, since the start.
type Stats struct {
	Sent int64 // spans that the collector took
	Lost int64 // spans that it didn't take, those apart that found the queue full
}

// Stats returns the counters.
func (t *Tracer) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	return Stats{Sent: t.out.sent.Load(), Lost: t.out.lost.Load()}
}

// exporter counts what goes out and says in the log what doesn't, now and then. The SDK would
// tell a global handler of each failure, on standard error.
type exporter struct {
	to         sdk.SpanExporter
	log        *slog.Logger
	sent, lost atomic.Int64
	said       atomic.Int64 // when a failure was logged, in ns
}

const sayEvery = time.Minute

// ExportSpans implements sdk.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.to.ExportSpans(ctx, spans)
	if err == nil {
		e.sent.Add(int64(len(spans)))
		return nil
	}
	lost := e.lost.Add(int64(len(spans)))
	now, last := time.Now().UnixNano(), e.said.Load()
	if now-last > int64(sayEvery) && e.said.CompareAndSwap(last, now) {
		e.log.Warn("the collector doesn't take traces; calls go on without them", "error", err, "lost_so_far", lost)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(ctx context.Context) error { return e.to.Shutdown(ctx) }
