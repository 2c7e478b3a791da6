package tracing_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-fleet/drover/server/internal/tracing"
)

// tracer makes one that sends to endpoint, with these variables too.
func tracer(t *testing.T, log *slog.Logger, endpoint string, env ...string) *tracing.Tracer {
	t.Helper()
	clean(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	tr, err := tracing.New(t.Context(), tracing.Self{Version: "1", Instance: "i"}, log)
	if err != nil || tr == nil {
		t.Fatalf("%v %v", tr, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		tr.Close(ctx)
	})
	return tr
}

// clean takes a developer's own settings away.
func clean(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
		"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"} {
		t.Setenv(name, "")
	}
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestOffCostsNothing: without a collector nothing is made, and nothing is allocated on the
// path of a call.
func TestOffCostsNothing(t *testing.T) {
	clean(t)
	var tr *tracing.Tracer
	h := http.Header{tracing.Header: {parent}}
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		ctx, request := tr.Start(tr.FromClient(ctx, h), tracing.Server, "POST")
		ctx, call := tr.Start(tr.FromMessage(ctx, parent), tracing.Internal, "call")
		call.Set("a", "b")
		flight := tracing.With(context.Background(), tracing.Of(ctx))
		if call.Traceparent() != "" || tracing.Of(flight).Traceparent() != "" || call.TraceID() != "" {
			t.Error("there's a trace")
		}
		_, hop := tr.Start(tr.FromReplica(flight, parent), tracing.Server, "hop")
		hop.Fail("x")
		hop.End()
		call.End()
		request.End()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	tr.Close(ctx)
	if tr.Stats() != (tracing.Stats{}) {
		t.Error("it counted")
	}
}

func TestWhatTheEnvironmentSays(t *testing.T) {
	const at = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:9"
	for _, c := range []struct {
		env string // space-separated
		on  bool
		bad string
	}{
		{"", false, ""},
		{at, true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:9/v1/traces", true, ""},
		{at + " OTEL_SDK_DISABLED=true", false, ""},
		{at + " OTEL_TRACES_EXPORTER=none", false, ""},
		{at + " OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{at + " OTEL_TRACES_EXPORTER=zipkin", false, "OTEL_TRACES_EXPORTER"},
		{at + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "http/protobuf"},
		{at + " OTEL_TRACES_SAMPLER=always_off", true, ""},
		{at + " OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0.5", true, ""},
		{at + " OTEL_TRACES_SAMPLER=jaeger_remote", false, "OTEL_TRACES_SAMPLER"},
		{at + " OTEL_TRACES_SAMPLER=parentbased_", false, "OTEL_TRACES_SAMPLER"},
		{at + " OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", false, "0 to 1"},
		{at + " OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=NaN", false, "0 to 1"},
		{"OTEL_TRACES_SAMPLER=nonsense", false, ""}, // nothing is sent, so it doesn't matter
	} {
		t.Run(c.env, func(t *testing.T) {
			clean(t)
			for _, kv := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			tr, err := tracing.New(t.Context(), tracing.Self{}, slog.New(slog.DiscardHandler))
			if (err != nil) != (c.bad != "") || err != nil && !strings.Contains(err.Error(), c.bad) || (tr != nil) != c.on {
				t.Errorf("on %t, %v", tr != nil, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			tr.Close(ctx)
		})
	}
}

// TestClientsCannotHaveMoreRecorded: whatever trace id and flag clients choose, as much is
// recorded as without them, or less; what another replica decided counts.
func TestClientsCannotHaveMoreRecorded(t *testing.T) {
	const runs = 1000
	recorded := func(tr *tracing.Tracer, ctx context.Context) (n int) {
		for range runs {
			ctx, s := tr.Start(ctx, tracing.Server, "s")
			_, below := tr.Start(ctx, tracing.Internal, "below")
			if strings.HasSuffix(s.Traceparent(), "-01") != strings.HasSuffix(below.Traceparent(), "-01") {
				t.Fatal("a span and the one below it differ")
			}
			if strings.HasSuffix(s.Traceparent(), "-01") {
				n++
			}
		}
		return n
	}
	lowest := "00-00000000000000000000000000000001-b7ad6b7169203331-01" // drawn by any ratio of trace ids
	unsampled := parent[:53] + "00"
	for _, c := range []struct {
		sampler, arg           string
		own, asked, off, there int // in percent: no parent, a client's that is sampled, and not, a replica's that is
	}{
		{"", "", 100, 100, 0, 100},
		{"always_on", "", 100, 100, 100, 100},
		{"always_off", "", 0, 0, 0, 100},
		{"parentbased_always_off", "", 0, 0, 0, 100},
		{"parentbased_traceidratio", "0.1", 10, 10, 0, 100},
		{"traceidratio", "0.1", 10, 10, 10, 100},
	} {
		t.Run(c.sampler, func(t *testing.T) {
			tr := tracer(t, slog.New(slog.DiscardHandler), "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER="+c.sampler, "OTEL_TRACES_SAMPLER_ARG="+c.arg)
			ctx := t.Context()
			for _, g := range []struct {
				what string
				ctx  context.Context
				want int
			}{
				{"no parent", ctx, c.own},
				{"a client's", tr.FromClient(ctx, http.Header{tracing.Header: {lowest}}), c.asked},
				{"a message's", tr.FromMessage(ctx, lowest), c.asked},
				{"a client's that isn't", tr.FromClient(ctx, http.Header{tracing.Header: {unsampled}}), c.off},
				{"a replica's", tr.FromReplica(ctx, lowest), c.there},
				{"a replica's that isn't", tr.FromReplica(ctx, unsampled), 0},
			} {
				n := recorded(tr, g.ctx)
				if want := g.want * runs / 100; n < want-runs/25 || n > want+runs/25 {
					t.Errorf("%s: %d of %d, want about %d", g.what, n, runs, want)
				}
			}
		})
	}
}

func TestContextsThatAreNone(t *testing.T) {
	tr := tracer(t, slog.New(slog.DiscardHandler), "http://127.0.0.1:9")
	ctx := t.Context()
	for _, h := range []http.Header{{}, {tracing.Header: {parent, parent}}, {tracing.Header: {""}}, {tracing.Header: {parent + ","}}, {tracing.Header: {strings.Repeat("0", 1<<20)}}} {
		_, s := tr.Start(tr.FromClient(ctx, h), tracing.Server, "s")
		if id := s.TraceID(); len(id) != 32 || id == parent[3:35] {
			t.Errorf("%.60v: %q", h, id)
		}
	}
	_, s := tr.Start(tr.FromClient(ctx, http.Header{tracing.Header: {parent}}), tracing.Server, "s")
	if s.TraceID() != parent[3:35] || s.Traceparent()[36:52] == parent[36:52] || !strings.HasPrefix(s.Traceparent(), parent[:36]) {
		t.Errorf("a good one: %s", s.Traceparent())
	}
}

// TestACollectorThatTakesNothing: spans are made and ended at once whatever it does, what is
// kept for it is bounded, and the log says so once.
func TestACollectorThatTakesNothing(t *testing.T) {
	var asked atomic.Int64
	hold := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1); <-hold }))
	defer silent.Close()
	defer close(hold)
	tr := tracer(t, slog.New(slog.DiscardHandler), silent.URL, "OTEL_BSP_SCHEDULE_DELAY=1")
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	make := func(n int) {
		for i := range n {
			_, s := tr.Start(t.Context(), tracing.Internal, "call")
			s.Set("drover.call.id", fmt.Sprint(i))
			s.End()
		}
	}
	make(10_000)
	full := heap()
	const more = 50_000 // which would take 25 MB
	make(more)
	if asked.Load() == 0 {
		t.Fatal("the collector wasn't asked: nothing was tested")
	}
	if grown := heap() - full; grown > 4<<20 {
		t.Errorf("%d spans later %d bytes more are kept", more, grown)
	}
}

func TestFailuresAreCountedAndLoggedNowAndThen(t *testing.T) {
	var buf bytes.Buffer
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer refuses.Close()
	tr := tracer(t, slog.New(slog.NewTextHandler(&buf, nil)), refuses.URL, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=1")
	for range 3 {
		_, s := tr.Start(t.Context(), tracing.Internal, "call")
		s.End()
	}
	tr.Close(t.Context())
	if s := tr.Stats(); s.Lost != 3 || s.Sent != 0 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(buf.String(), "level=WARN"); n != 1 {
		t.Errorf("%d lines: %s", n, buf.String())
	}
}
