package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// seen is a span as a collector got it.
type seen struct {
	trace, id, parent, name string
	instance                string // of the replica
	kind                    spans.Span_SpanKind
	attrs                   map[string]string
	links                   []string // their trace and span
	failed                  bool
	start, end              uint64
}

// collect is a collector of traces over OTLP/HTTP.
type collect struct {
	*httptest.Server
	mu  sync.Mutex
	all []seen
	raw []byte // all bodies
}

func newCollector(t *testing.T) *collect {
	t.Helper()
	c := &collect{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &req)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("X-Key") != "of the collector" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.take(&req, body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// env makes a server send its traces here, soon.
func (c *collect) env(more ...string) []string {
	return append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_EXPORTER_OTLP_HEADERS=X-Key=of%20the%20collector",
		"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}, more...)
}

func (c *collect) take(req *collector.ExportTraceServiceRequest, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = append(c.raw, body...)
	for _, rs := range req.ResourceSpans {
		about := map[string]string{}
		for _, a := range rs.Resource.Attributes {
			about[a.Key] = a.Value.GetStringValue()
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				got := seen{
					trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId), name: s.Name,
					instance: about["service.name"] + "/" + about["deployment.environment.name"] + "/" + about["service.instance.id"], kind: s.Kind, attrs: map[string]string{},
					failed: s.Status.GetCode() == spans.Status_STATUS_CODE_ERROR, start: s.StartTimeUnixNano, end: s.EndTimeUnixNano,
				}
				for _, a := range s.Attributes {
					got.attrs[a.Key] = a.Value.GetStringValue()
				}
				for _, l := range s.Links {
					got.links = append(got.links, hex.EncodeToString(l.TraceId)+" "+hex.EncodeToString(l.SpanId))
				}
				c.all = append(c.all, got)
			}
		}
	}
}

// of returns the spans of one trace, or of all ("").
func (c *collect) of(trace string) []seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []seen
	for _, s := range c.all {
		if trace == "" || s.trace == trace {
			out = append(out, s)
		}
	}
	return out
}

// everything is what came, as bytes.
func (c *collect) everything() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]byte(nil), c.raw...)
}
