// Package edge is what Drover's HTTP edges share: who is asking, which Host and Origin are
// served, the one strict reading of a body, request ids, security headers, and how an error
// becomes an HTTP answer. It decides nothing about agents or tools.
package edge

import (
	"context"
	"crypto/rand"
	mrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// RequestIDHeader carries the id of a request, made by this server, in its answer.
const RequestIDHeader = "X-Request-Id"

// principalKey is the key of the only value that Drover carries in a context.
type principalKey struct{}

// WithPrincipal returns a context that carries who is asking.
func WithPrincipal(ctx context.Context, p fleet.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Principal returns who is asking; false where nothing authenticated the request.
func Principal(ctx context.Context) (fleet.Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(fleet.Principal)
	return p, ok
}

// Authenticate lets a request pass with the principal that identify finds for it. An error
// of identify ends the request: a *fleet.Error with its own status, anything else as a 401.
// A 401 names the scheme, and error="invalid_token" when a credential was presented. serving
// ends the request with its credential.
func Authenticate(serving *Serving, identify func(*http.Request) (fleet.Principal, error)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, err := identify(r)
			if err == nil && p.ID == "" {
				err = fleet.Errorf(protocol.CodeUnauthenticated, "a credential is needed")
			}
			if err != nil {
				fe := fleet.AsError(err)
				if fe.Code == protocol.CodeUnauthenticated {
					Challenge(w.Header(), r)
				}
				WriteError(w, fe)
				return
			}
			ctx, done := serving.Begin(WithPrincipal(r.Context(), p), w, p.ID, nil)
			defer done()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// Challenge sets WWW-Authenticate for a 401 to r (RFC 6750: an error only where a
// credential was presented).
func Challenge(h http.Header, r *http.Request) {
	v := `Bearer realm="drover"`
	if r.Header.Get("Authorization") != "" {
		v += `, error="invalid_token", error_description="the token is malformed, unknown, expired or revoked"`
	}
	h.Set("WWW-Authenticate", v)
}

// Bearer returns the token of the Authorization header; "" if there's none or it appears
// more than once.
func Bearer(r *http.Request) string {
	vs := r.Header.Values("Authorization")
	if len(vs) != 1 {
		return ""
	}
	scheme, token, ok := strings.Cut(vs[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// RequestID gives each request a fresh id in the answer's header. What a client sent under
// that name is dropped, so that it can't write another's id into a log.
func RequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del(RequestIDHeader)
		w.Header().Set(RequestIDHeader, rand.Text())
		next.ServeHTTP(w, r)
	})
}

// SecurityHeaders sets what every answer of an API carries: no sniffing, no framing, no
// referrer, no store.
func SecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// Recover turns a panic of a handler into an internal error with the request's id, and tells
// of it, with that id. http.ErrAbortHandler passes, as it must.
func Recover(tell func(p *fault.Panic, requestID string, r *http.Request)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				v := recover()
				if v == nil {
					return
				}
				if v == http.ErrAbortHandler {
					panic(v)
				}
				id := w.Header().Get(RequestIDHeader)
				tell(fault.Of(v), id, r)
				// If the answer has begun this only ends up in the log of net/http.
				WriteError(w, fleet.Errorf(protocol.CodeInternal, "Drover failed inside; the server's log has the cause under request %s", id))
			}()
			next.ServeHTTP(w, r)
		})
	}
}

// Status maps an error code to the HTTP status of an answer that consists of that error.
func Status(c protocol.Code) int {
	switch c {
	case protocol.CodeUnauthenticated:
		return http.StatusUnauthorized
	case protocol.CodeNoAgent, protocol.CodeBadArgs:
		return http.StatusBadRequest
	case protocol.CodeUnknownAgent, protocol.CodeUnknownTool, protocol.CodeNotFound:
		return http.StatusNotFound
	case protocol.CodeDenied:
		return http.StatusForbidden
	case protocol.CodeConflict, protocol.CodeApprovalPending, protocol.CodeExpired, protocol.CodeCancelled:
		return http.StatusConflict
	case protocol.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case protocol.CodeRateLimited:
		return http.StatusTooManyRequests
	case protocol.CodeUnsupported:
		return http.StatusUnprocessableEntity
	case protocol.CodeOffline, protocol.CodeUnavailable, protocol.CodeNotStarted:
		return http.StatusServiceUnavailable
	case protocol.CodeToolFailed, protocol.CodeOutcomeUnknown:
		return http.StatusBadGateway
	case protocol.CodeTimedOut:
		return http.StatusGatewayTimeout
	case protocol.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// StatusOf maps an error to the HTTP status of an answer that consists of it: Status, but
// 408 for a body that didn't arrive in time, 415 for one that isn't declared as JSON, and 502 for
// an agent that failed inside.
func StatusOf(e *fleet.Error) int {
	switch {
	case e.Code == protocol.CodeBadArgs && e.Reason == ReasonBodyLate:
		return http.StatusRequestTimeout
	case e.Code == protocol.CodeBadArgs && e.Reason == ReasonMediaType:
		return http.StatusUnsupportedMediaType
	}
	if e.AgentFault() {
		return Status(protocol.CodeToolFailed)
	}
	return Status(e.Code)
}

// SayWhen sets Retry-After where waiting is enough to have e gone: whole seconds, not the same
// for everybody, so that who was turned away together doesn't come back together.
func SayWhen(h http.Header, e *fleet.Error) {
	if e.Passes() {
		h.Set("Retry-After", strconv.Itoa(1+mrand.IntN(5)))
	}
}

// Problem is the body of an HTTP error.
type Problem struct {
	Error protocol.Error `json:"error"`
}

// WriteError answers with the error as JSON, under its status.
func WriteError(w http.ResponseWriter, e *fleet.Error) {
	writeStatus(w, StatusOf(e), e)
}

func writeStatus(w http.ResponseWriter, status int, e *fleet.Error) {
	WriteProblem(w, status, e, Problem{protocol.Error{Code: e.Code, Reason: e.Reason, Message: e.Message}})
}

// WriteProblem is WriteError with a status, and a problem that says more than the error.
func WriteProblem(w http.ResponseWriter, status int, e *fleet.Error, problem any) {
	body, err := json.Marshal(problem)
	if err != nil { // only invalid UTF-8 in a message could do that
		body = []byte(`{"error":{"code":"internal","message":"Drover failed inside"}}`)
	}
	SayWhen(w.Header(), e)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1)) // it's whole before linger is done
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone needs no answer
}
