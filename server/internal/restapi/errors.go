package restapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Problem is the body of every answer that is an error.
type Problem struct {
	Error CallError `json:"error"`
}

// CallError is an error with its code.
type CallError struct {
	Code    string `json:"code" doc:"A stable word, the same on every interface of Drover."`
	Reason  string `json:"reason,omitzero" doc:"A stable word that says more, such as enoent for tool_failed."`
	Message string `json:"message" doc:"What happened and what to do next, for people."`
}

func callError(e *fleet.Error) *CallError {
	if e == nil {
		return nil
	}
	return &CallError{Code: string(e.Code), Reason: e.Reason, Message: e.Message}
}

// refusal is a *fleet.Error as the HTTP library wants errors: with a status.
type refusal struct {
	fe     *fleet.Error
	status int // of its own; 0: that of fe
}

// statusClientGone is what the log and the metrics show of a request whose client left
// before the answer (nginx's word for it): not a failure of this server.
const statusClientGone = 499

// Error implements error.
func (r refusal) Error() string { return r.fe.Error() }

// GetStatus implements huma.StatusError.
func (r refusal) GetStatus() int {
	if r.status != 0 {
		return r.status
	}
	return edge.StatusOf(r.fe)
}

// GetHeaders implements huma.HeadersError.
func (r refusal) GetHeaders() http.Header {
	h := http.Header{}
	edge.SayWhen(h, r.fe)
	return h
}

// fail turns a handler's error into an answer; what isn't for the caller goes to the log.
func (a *API) fail(op string, err error) error {
	fe := fleet.AsError(err)
	a.logCause(op, fe)
	return refusal{fe: fe}
}

// logCause writes what an answer keeps back: the cause of an error, and each internal error of
// this server.
func (a *API) logCause(op string, fe *fleet.Error) {
	switch {
	case fe.AgentFault(): // dispatch has told of it
	case fe.Code == protocol.CodeInternal:
		a.Log.Error("a request failed inside", "operation", op, "message", fe.Message, "err", fe.Err)
	case fe.Err != nil && edge.StatusOf(fe) >= http.StatusInternalServerError:
		a.Log.Warn("request failed", "operation", op, "code", fe.Code, "err", fe.Err)
	}
}

// answer is one request's context in the HTTP library: it carries the principal, and lets
// rewrite choose the status of an error that the library made itself.
type answer struct {
	inner
	ctx    context.Context
	who    fleet.Principal
	status int
}

type inner huma.Context

// Context returns the request's context, with the principal.
func (a *answer) Context() context.Context { return a.ctx }

// Unwrap lets the adapter find its own context.
func (a *answer) Unwrap() huma.Context { return a.inner }

// SetHeader keeps the one media type of answers: the library has another for its errors.
func (a *answer) SetHeader(name, value string) {
	if value == "application/problem+json" {
		value = "application/json"
	}
	a.inner.SetHeader(name, value)
}

// SetStatus writes the status that rewrite chose, or else code.
func (a *answer) SetStatus(code int) {
	if a.status != 0 {
		code = a.status
	}
	a.inner.SetStatus(code)
}

// rewrite gives every error Drover's own form. The library's would repeat the values that
// it refused.
func (a *API) rewrite(ctx huma.Context, _ string, v any) (any, error) {
	switch e := v.(type) {
	case refusal:
		return Problem{*callError(e.fe)}, nil
	case *huma.ErrorModel:
		fe, status := fromLibrary(e)
		if fe.Code == protocol.CodeInternal {
			fe.Err = errors.Join(libraryErrors(e)...)
			a.logCause(ctx.Operation().OperationID, fe)
		}
		ans, ok := ctx.(*answer)
		if ok {
			ans.status = status
			if ctx.Operation().OperationID == "create-call" {
				a.Dispatch.Refuse(ans.who, fleet.Refusal{Client: clientName(ctx.Header("User-Agent")), Edge: edgeName, Code: fe.Code, Message: fe.Message})
			}
		}
		return Problem{*callError(fe)}, nil
	default:
		return v, nil
	}
}

// fromLibrary words an error that the HTTP library found in a request.
func fromLibrary(e *huma.ErrorModel) (*fleet.Error, int) {
	if e.Status >= http.StatusInternalServerError {
		return fleet.Errorf(protocol.CodeInternal, "Drover failed inside; the server's log has the cause"), e.Status
	}
	msg := e.Detail
	for _, d := range e.Errors {
		if d == nil {
			continue
		}
		where, name, _ := strings.Cut(d.Location, ".")
		switch where {
		case "query", "path":
			msg = "the " + where + " parameter " + text.Quote(name, 64) + ": " + d.Message
		default:
			msg = "the body was refused: " + d.Message
		}
		break
	}
	return fleet.Errorf(protocol.CodeBadArgs, "%s", msg), edge.Status(protocol.CodeBadArgs)
}

// libraryErrors is all that the HTTP library says of an error, for the log.
func libraryErrors(e *huma.ErrorModel) []error {
	out := []error{errors.New(e.Detail)}
	for _, d := range e.Errors {
		if d != nil {
			out = append(out, d)
		}
	}
	return out
}

// guard decides whether the caller may use the operation at all, and then reads the body.
func (a *API) guard(op operation) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humachi.Unwrap(ctx)
		ans := &answer{inner: ctx, ctx: r.Context()}
		if op.need != public {
			who, err := a.Identify(r)
			if err == nil && op.need == admin && !who.Admin {
				err = fleet.Errorf(protocol.CodeDenied, "this (%s) needs an administrator's token (drover pat create --admin)", op.id)
			}
			if err != nil {
				a.refuse(w, r, op, who, fleet.AsError(err))
				return
			}
			ctx, served := a.begin(w, r, who)
			defer served()
			if ans.who, ans.ctx = who, ctx; r.Method != http.MethodGet && r.Method != http.MethodHead {
				// What changes something isn't left half done: it has its answer, if that's read.
				ans.ctx = context.WithoutCancel(ctx)
			}
		}
		_, err := edge.Query(r, named(ctx.Operation()))
		if err == nil {
			err = edge.DeclaredJSON(r)
		}
		if err != nil {
			a.refuse(w, r, op, ans.who, fleet.AsError(err))
			return
		}
		// The library would read it too, but leave its deadline on the connection and take a
		// client's broken one for a failure of its own.
		body, done, err := a.Bodies.Read(w, r, ans.who.ID, op.bodyLimit())
		if err != nil {
			a.refuse(w, r, op, ans.who, fleet.AsError(err))
			return
		}
		defer done()
		edge.SetBody(r, body)
		next(ans)
	}
}

// named are the query parameters that an operation has.
func named(op *huma.Operation) (names []string) {
	for _, p := range op.Parameters {
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	return names
}

// bodyLimit bounds the operation's body, in bytes.
func (op operation) bodyLimit() int {
	if op.id == "create-call" {
		return maxCallBody
	}
	return maxBody
}

// recorded tells whether a refusal goes on record: of what would have been a call, and of who
// may not manage Drover.
func (op operation) recorded(code protocol.Code) bool {
	return op.id == "create-call" || op.id == "download-file" || op.id == "upload-file" || code == protocol.CodeDenied
}

func (a *API) refuse(w http.ResponseWriter, r *http.Request, op operation, who fleet.Principal, fe *fleet.Error) {
	if fe.Code == protocol.CodeUnauthenticated {
		edge.Challenge(w.Header(), r)
	}
	if op.recorded(fe.Code) {
		a.Dispatch.Refuse(who, fleet.Refusal{Client: clientName(r.UserAgent()), Edge: edgeName, Agent: chi.URLParam(r, "agent_id"), Code: fe.Code, Message: fe.Message})
	}
	a.logCause(op.id, fe)
	edge.WriteError(w, fe)
}

func writeProblem(w http.ResponseWriter, status int, e *fleet.Error) {
	edge.WriteProblem(w, status, e, Problem{*callError(e)})
}
