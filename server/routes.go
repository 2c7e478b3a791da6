package server

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/ui"
)

const mcpPath = "/mcp"

// routes is every door of a server. What agents dial is authenticated by key and needs no
// Host check; everything else is for clients and browsers.
func (s *Server) routes() (http.Handler, error) {
	var hosts, origins []string
	if s.cfg.PublicURL != "" {
		name, err := edge.HostName(s.cfg.PublicURL)
		if err != nil {
			return nil, err
		}
		origin, err := edge.Origin(s.cfg.PublicURL)
		if err != nil {
			return nil, err
		}
		hosts, origins = []string{name}, []string{origin}
	}
	crossOrigin, err := edge.CrossOrigin(s.refused, origins...)
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(edge.UnreadAnswer, edge.UnreadBody, s.lastAnswers, edge.RequestID, middleware.GetHead, obs.Requests(s.log, s.metrics, s.trace), edge.Recover(s.requestFault))
	r.Get("/agent/v1/tunnel", s.tunnel.ServeHTTP)
	r.Post("/agent/v1/enroll", s.enroll.ServeHTTP)
	r.Group(func(r chi.Router) {
		r.Use(edge.Hosts(hosts...), crossOrigin)
		s.rest.Mount(r)
		r.With(edge.Authenticate(s.serving, s.bearer)).Handle(mcpPath, s.mcp)
		r.Handle("/*", ui.Handler())
	})
	return r, nil
}

// requestFault tells of a panic that was kept to one request.
func (s *Server) requestFault(p *fault.Panic, id string, r *http.Request) {
	s.metrics.Caught(s.log, obs.InRequest, p, "request_id", id, "method", r.Method, "path", r.URL.Path)
}

// refused records a request that was turned away before anybody knew whose it is: all of these
// share a row a second.
func (s *Server) refused(r *http.Request, fe *fleet.Error) {
	edgeName := "rest"
	if r.URL.Path == mcpPath {
		edgeName = "mcp"
	}
	s.dispatch.Refuse(fleet.Principal{}, fleet.Refusal{Client: text.Line(r.UserAgent(), 96), Edge: edgeName, Code: fe.Code, Message: fe.Message})
}

// bearer authenticates MCP: by the Authorization header alone, never by a page's cookie.
func (s *Server) bearer(r *http.Request) (fleet.Principal, error) {
	who, given, err := s.authn.Bearer(r)
	if err == nil && !given {
		err = fleet.Errorf(protocol.CodeUnauthenticated, "a credential is needed")
	}
	if err != nil && r.Method == http.MethodPost { // others carry no call
		s.refused(r, fleet.AsError(err))
	}
	return who, err
}

// FirstPAT makes an administrator's token for all agents and tools: what drover dev hands
// to its user, and what tests begin with.
func (s *Server) FirstPAT(ctx context.Context, name string) (token string, err error) {
	token, _, err = s.authn.CreatePAT(ctx, authn.System("first-run"), authn.NewPAT{
		Name: name, Admin: true,
		Grant: fleet.Grant{Agents: fleet.AgentSet{All: true}, Tools: fleet.ToolSet{All: true}},
	})
	return token, err
}
