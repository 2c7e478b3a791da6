// Package restapi is Drover's REST interface under /api/v1, the health pages and the page's
// session, over dispatch and the store. Types of the HTTP library stop here.
package restapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/session"
)

//go:generate go test . -run TestOpenAPIIsCommitted -update

// Prefix is where the API lives.
const Prefix = "/api/v1"

// Limits of a request's body, in bytes.
const (
	maxBody     = 256 << 10
	maxCallBody = capability.MaxArgs + 64<<10
)

// Calls is the path of a call: dispatch.Dispatcher.
type Calls interface {
	Call(ctx context.Context, who fleet.Principal, req dispatch.Request) (dispatch.Result, error)
	Result(ctx context.Context, who fleet.Principal, id fleet.CallID, wait time.Duration) (dispatch.Result, error)
	Cancel(ctx context.Context, who fleet.Principal, id fleet.CallID) (dispatch.Result, error)
	// Purge takes back the calls that are queued for an agent, and returns how many.
	Purge(ctx context.Context, who fleet.Principal, agent string) (int, error)
	Refuse(who fleet.Principal, r fleet.Refusal)
}

// Fleet tells what a principal may see: dispatch.Dispatcher.
type Fleet interface {
	Agents(who fleet.Principal) []dispatch.AgentView
	Agent(who fleet.Principal, id, edge string) (dispatch.AgentView, error)
	OfflineWhy() string
	Tools(who fleet.Principal) []*capability.Definition
	Commitments(ctx context.Context, who fleet.Principal, id fleet.CallID) (commit.Commitments, error)
}

// Config is what the API stands on. Everything must be there unless its comment says
// otherwise.
type Config struct {
	Dispatch interface {
		Calls
		Fleet
	}
	PATs interface {
		PATs
		Tokens
	}
	Enrolment Enrolment
	Store     Store
	// Fenced tells that nothing may start here for now; nil: that's never so.
	Fenced func() bool
	// Bodies reads what clients send.
	Bodies *edge.Bodies
	// Serving ends requests with their credentials.
	Serving *edge.Serving
	// Metrics serves /metrics once access is decided; nil: there's no such page.
	Metrics http.Handler
	// Sessions are the page's; nil: nobody signs in here.
	Sessions *session.Keeper
	// Secure marks the session's cookie for https alone: the public URL is https.
	Secure bool
	// FileIdle is how long an upload's client may stand still; a minute when zero.
	FileIdle time.Duration
	// Blind: this process holds no tunnels, so that the state of agents is unknown.
	Blind bool
	// EnrollCommand is told to administrators: see server.Config.
	EnrollCommand string

	Version string
	Log     *slog.Logger
}

// API is the REST interface.
type API struct {
	Config
	huma     huma.API
	router   chi.Router
	draining atomic.Bool
}

// New makes the API. The error is a defect of the operations' table.
func New(c Config) (*API, error) {
	if c.Log == nil {
		return nil, errors.New("restapi: there's no log")
	}
	a := &API{Config: c, router: chi.NewRouter()}
	a.Mount(a.router)
	return a, nil
}

// ServeHTTP serves what Mount mounts.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// Mount adds the API under Prefix, the page's session, /healthz, /readyz and /metrics to a
// router. The router's own middleware must have refused foreign hosts already.
func (a *API) Mount(r chi.Router) {
	r.Get("/healthz", a.healthz)
	r.Head("/healthz", a.healthz)
	r.Get("/readyz", a.readyz)
	r.Head("/readyz", a.readyz)
	r.Get("/metrics", a.metrics)
	r.Route(Prefix, func(r chi.Router) {
		r.Use(edge.SecurityHeaders)
		a.mountFiles(r)
		r.NotFound(func(w http.ResponseWriter, _ *http.Request) {
			edge.WriteError(w, fleet.Errorf(protocol.CodeNotFound, "there's no such path in Drover's API; docs/openapi.yaml lists them all"))
		})
		r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Allow", edge.Allow(req))
			writeProblem(w, http.StatusMethodNotAllowed, fleet.Errorf(protocol.CodeBadArgs, "this path doesn't take that method; docs/openapi.yaml lists them all"))
		})
		if a.Sessions != nil {
			r.With(edge.JSONBody).Post("/session", a.openSession)
			r.Delete("/session", a.closeSession)
		}
		a.huma = humachi.New(r, a.config())
		a.register()
	})
}

func (a *API) config() huma.Config {
	format := huma.Format{Marshal: marshal, Unmarshal: unmarshal}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Drover", Version: "1", Description: apiDescription,
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}},
			Servers: []*huma.Server{{URL: Prefix}},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"pat":     {Type: "http", Scheme: "bearer", BearerFormat: "drv_pat_…", Description: "A personal access token."},
					"session": {Type: "apiKey", In: "cookie", Name: cookieName, Description: "The page's session, for the same origin alone."},
				},
			},
		},
		Formats: map[string]huma.Format{
			"application/json": format,
			"json":             format, // what the library's own errors are marshalled by
		},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{a.rewrite},
	}
}

const apiDescription = `Drover runs a call on exactly the agent it names, or on none.

Each forwarded call names its agent in agent_id; nothing else selects one. A call that was
refused answers an error status. A call that was accepted answers 200 once it has ended,
also when it failed (see state and error), and 202 while it is still open.

An answer with the status 429 has Retry-After, in seconds, where waiting is enough.`

// marshal writes an answer: nil lists as [], text as it is, and JSON that was kept as it was
// kept, since hashes are over its bytes.
func marshal(w io.Writer, v any) error {
	return json.MarshalWrite(w, v, jsontext.PreserveRawStrings(true))
}

// unmarshal is the only decoder of bodies here: names match exactly and stand once,
// unknown and missing members and null are refused, and errors repeat no value.
func unmarshal(b []byte, v any) error {
	return strict.Unmarshal(b, v, strict.Limits{Numbers: true})
}

// OpenAPI returns the description of the API as YAML: docs/openapi.yaml.
func (a *API) OpenAPI() ([]byte, error) { return a.huma.OpenAPI().YAML() }
