package obs

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// Requests logs and counts each HTTP request when it ends, and makes the spans of those that
// are traced. The query and the headers stay out of it all: credentials travel there. m may
// be nil, and so may t.
func Requests(log *slog.Logger, m *Metrics, t *tracing.Tracer) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			var span tracing.Span
			if t != nil && traced(r) {
				var ctx context.Context
				ctx, span = t.Start(t.FromClient(r.Context(), r.Header), tracing.Server, methodOf(r.Method))
				r = r.WithContext(ctx)
			}
			// Deferred, so that a request whose handler panicked is logged too.
			defer func() {
				took := time.Since(start)
				status := ww.Status()
				if status == 0 {
					status = http.StatusOK
				}
				route := routeOf(r)
				if m != nil {
					m.request(methodOf(r.Method), route, status, took)
				}
				shown(span, r, route, status)
				attrs := append(make([]slog.Attr, 0, 9), slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", status),
					slog.Int("bytes", ww.BytesWritten()), slog.Float64("took_ms", float64(took.Microseconds())/1000), slog.String("peer", r.RemoteAddr),
					slog.String("user_agent", r.UserAgent()), slog.String("request_id", ww.Header().Get(edge.RequestIDHeader)))
				if id := span.TraceID(); id != "" {
					attrs = append(attrs, slog.String("trace_id", id))
				}
				log.LogAttrs(r.Context(), levelOf(route, status), "http request", attrs...)
			}()
			next.ServeHTTP(ww, r)
		})
	}
}

// traced tells which requests have spans: those of clients that ask something. Tunnels, and
// streams that clients hold open, last for days.
func traced(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/api/") || r.URL.Path == "/mcp" && r.Method == http.MethodPost
}

// shown ends a request's span.
func shown(s tracing.Span, r *http.Request, route string, status int) {
	s.Name(methodOf(r.Method) + " " + route)
	s.Set("http.request.method", methodOf(r.Method))
	s.Set("http.route", route)
	s.SetInt("http.response.status_code", int64(status))
	if status >= 500 {
		s.Fail(strconv.Itoa(status))
	}
	s.End()
}

// routeOf is the pattern that matched: a bounded set, unlike the path.
func routeOf(r *http.Request) string {
	if rc := chi.RouteContext(r.Context()); rc != nil {
		if p := rc.RoutePattern(); p != "" {
			return p
		}
	}
	return "none"
}

func methodOf(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	default:
		return "other"
	}
}

// levelOf: what went well is in the record and in the metrics, and is logged on demand.
func levelOf(route string, status int) slog.Level {
	probe := route == "/healthz" || route == "/readyz" || route == "/metrics"
	switch {
	case status >= 500:
		return slog.LevelWarn
	case status >= 400 && !probe:
		return slog.LevelInfo
	default:
		return slog.LevelDebug
	}
}
