package obs

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/drover-fleet/drover/server/internal/edge"
)

// Requests logs and counts each HTTP request when it ends. The query and the headers stay
// out of the log: credentials travel there. m may be nil.
func Requests(log *slog.Logger, m *Metrics) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
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
				log.LogAttrs(r.Context(), levelOf(route, status), "http request",
					slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", status),
					slog.Int("bytes", ww.BytesWritten()), slog.Float64("took_ms", float64(took.Microseconds())/1000), slog.String("peer", r.RemoteAddr),
					slog.String("user_agent", r.UserAgent()), slog.String("request_id", ww.Header().Get(edge.RequestIDHeader)))
			}()
			next.ServeHTTP(ww, r)
		})
	}
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
