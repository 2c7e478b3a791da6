// Package mcpapi offers the fleet as MCP tools over dispatch: both protocol eras on one
// URL. Types of MCP's SDK stop here.
package mcpapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// Dispatcher is the path of a call: dispatch.Dispatcher.
type Dispatcher interface {
	Call(ctx context.Context, who fleet.Principal, req dispatch.Request) (dispatch.Result, error)
	Result(ctx context.Context, who fleet.Principal, id fleet.CallID, wait time.Duration) (dispatch.Result, error)
	Cancel(ctx context.Context, who fleet.Principal, id fleet.CallID) (dispatch.Result, error)
	Refuse(who fleet.Principal, r fleet.Refusal)
}

// Fleet is what a principal may see: dispatch.Dispatcher.
type Fleet interface {
	// Agents lists the agents in scope, by id.
	Agents(who fleet.Principal) []dispatch.AgentView
	// Agent finds one agent in scope by its exact id.
	Agent(who fleet.Principal, id, edge string) (dispatch.AgentView, error)
	// OfflineWhy is why agents that are shown as offline may be online, or "".
	OfflineWhy() string
	// Tools lists the forwarded tools that may be used; it's asked at every request.
	Tools(who fleet.Principal) []*capability.Definition
}

// Config is what the endpoint stands on. All of it must be there, except as said.
type Config struct {
	Dispatch Dispatcher
	Fleet    Fleet
	Version  string          // Drover's, for serverInfo
	Bodies   *edge.Bodies    // reads what clients send
	Trace    *tracing.Tracer // nil: no traces
	Metrics  *obs.Metrics    // nil counts nothing
	Log      *slog.Logger
	// Stateless serves older protocol revisions without sessions too, as several replicas
	// without affinity need it.
	Stateless bool
	// SessionTimeout closes an older client's session after this long without a request;
	// 20 minutes when zero.
	SessionTimeout time.Duration
}

// API is the MCP endpoint. It expects edge.Authenticate, edge.Hosts and edge.CrossOrigin
// before it, and an http.Server without WriteTimeout.
type API struct {
	dispatch    Dispatcher
	fleet       Fleet
	version     string
	bodies      *edge.Bodies
	trace       *tracing.Tracer
	metrics     *obs.Metrics
	log         *slog.Logger
	stateless   bool
	revisions   []string // that the SDK speaks
	tools       map[string]offer
	serverTools []offer
	servers     *servers

	withSessions, withoutSessions http.Handler

	mu              sync.Mutex
	open            map[string]map[*request]struct{} // requests under way, by principal
	gets            map[string]*standing             // GET streams, by principal and session
	leaving, closed bool
}

// New makes the endpoint.
func New(c Config) *API {
	a := &API{
		dispatch: c.Dispatch, fleet: c.Fleet, version: c.Version, bodies: c.Bodies, log: c.Log, stateless: c.Stateless, revisions: mcp.SupportedProtocolVersions(), trace: c.Trace, metrics: c.Metrics,
		open: map[string]map[*request]struct{}{}, gets: map[string]*standing{},
	}
	a.tools, a.serverTools = a.forwardedTools(capability.All()), a.ownTools()
	a.servers = newServers(a.newServer, a.caught("closing a session", fleet.Principal{}))
	timeout := c.SessionTimeout
	if timeout == 0 {
		timeout = 20 * time.Minute
	}
	// The SDK's own check of the Host refuses a proxy on the same machine; edge.Hosts is
	// before this handler instead.
	a.withSessions = authenticated(mcp.NewStreamableHTTPHandler(a.serverOf, &mcp.StreamableHTTPOptions{
		SessionTimeout: timeout, DisableLocalhostProtection: true, MaxRequestBodyBytes: maxBody + 1,
	}))
	a.withoutSessions = authenticated(mcp.NewStreamableHTTPHandler(a.serverOf, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: maxBody + 1,
	}))
	return a
}

// authenticated hands the principal that the edge verified to the SDK, which binds a
// session to it and gives it to each handler: in a session the context's values are those
// of its first request, so that the identity may be taken from there never.
func authenticated(next http.Handler) http.Handler {
	verify := func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		who, ok := edge.Principal(ctx)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: who.ID, Extra: map[string]any{principalKey: who, spanKey: tracing.Of(ctx)}}, nil
	}
	return auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

const (
	principalKey = "principal"
	spanKey      = "span"
)

// principalOf is who sent this very request.
func principalOf(extra *mcp.RequestExtra) (fleet.Principal, bool) {
	if extra == nil || extra.TokenInfo == nil {
		return fleet.Principal{}, false
	}
	who, ok := extra.TokenInfo.Extra[principalKey].(fleet.Principal)
	return who, ok && who.ID != "" && who.ID == extra.TokenInfo.UserID
}

// serverOf is what the SDK asks, twice a request.
func (a *API) serverOf(r *http.Request) *mcp.Server {
	who, ok := edge.Principal(r.Context())
	if !ok {
		return nil
	}
	return a.servers.of(who.ID).server
}

// ServeHTTP serves one request: the body is read whole and strictly; then a plain use of a
// tool is served here (serveCall), and for all else the SDK's handler of the right era has it.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := edge.Principal(r.Context())
	if !ok {
		edge.Challenge(w.Header(), r)
		edge.WriteError(w, fleet.Errorf(protocol.CodeUnauthenticated, "a credential is needed"))
		return
	}
	ctx, req, end := a.track(r.Context(), w, who.ID)
	defer end()
	r = r.WithContext(ctx)
	var msgs []message
	if r.Method == http.MethodPost {
		var done func()
		if msgs, done, ok = a.readPost(w, r, who); !ok {
			return
		}
		defer done()
	}
	method := soleMethod(msgs)
	stateful := a.stateful(r, method)
	if bad := a.check(r, who, stateful, msgs); bad != nil {
		a.turnAway(w, r, who, msgs, bad)
		return
	}
	if ignored(msgs) {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if len(msgs) == 1 {
		if c, ok := a.plain(r, who, &msgs[0]); ok {
			a.serveCall(w, r, c)
			return
		}
	}
	next := a.withoutSessions
	if stateful {
		next = a.withSessions
		if r.Method == http.MethodGet {
			leave := a.takeOver(w, r, who.ID, req)
			defer leave()
		}
	}
	if r.Method == http.MethodGet || method == methodListen {
		if err := a.stand(who.ID, req); err != nil {
			a.turnAway(w, r, who, msgs, asRefusal(err))
			return
		}
	}
	server := a.servers.of(who.ID)
	server.sync(a, who)
	server.touch(r.Header.Get(sessionHeader))
	s := newStream(w, r.Method == http.MethodGet, method != methodInitialize, a.caught("a stream", who))
	defer func() { a.finish(s, r, who, msgs) }()
	next.ServeHTTP(s, r)
	if stateful && method == methodInitialize {
		server.opened(s.Header().Get(sessionHeader))
	}
}

// readPost reads and checks the body; false when the request was answered with a refusal.
// Otherwise done must be called when it's answered.
func (a *API) readPost(w http.ResponseWriter, r *http.Request, who fleet.Principal) (msgs []message, done func(), ok bool) {
	if !edge.IsJSON(r.Header.Get("Content-Type")) {
		a.refuseBody(w, r, who, &refusal{
			status: http.StatusUnsupportedMediaType, rpc: codeServer,
			err: fleet.Errorf(protocol.CodeBadArgs, "the body must be sent as Content-Type: application/json"),
		})
		return nil, nil, false
	}
	body, done, err := a.bodies.Read(w, r, who.ID, maxBody)
	if err != nil {
		a.refuseBody(w, r, who, asRefusal(err))
		return nil, nil, false
	}
	msgs, bad := preflight(body)
	if bad != nil {
		done()
		bad.settle(r)
		a.refuseBody(w, r, who, bad)
		return nil, nil, false
	}
	edge.SetBody(r, body)
	return msgs, done, true
}

// refuseBody answers and records a body that goes no further.
func (a *API) refuseBody(w http.ResponseWriter, r *http.Request, who fleet.Principal, bad *refusal) {
	if bad.err.Code == protocol.CodeUnauthenticated {
		edge.Challenge(w.Header(), r)
	}
	a.dispatch.Refuse(who, fleet.Refusal{
		Client: clientName(nil, r.Header), Edge: edgeName, Tool: bad.tool, Agent: bad.agent, Code: bad.err.Code, Message: bad.err.Message,
	})
	bad.write(w)
}
