package mcpapi

import (
	"container/list"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// maxServers bounds the servers that are kept; those with open sessions stay beyond it.
const maxServers = 1024

// servers keeps one SDK server per principal: building one costs more than a request.
// Both eras and all of a principal's sessions share it, so that a change of its tools is
// made in place and its open streams hear of it.
type servers struct {
	build func() *mcp.Server

	mu   sync.Mutex
	byID map[string]*list.Element // of *server
	used *list.List               // the latest first
}

// server is the SDK's server of one principal.
type server struct {
	principal string
	server    *mcp.Server

	mu    sync.Mutex
	who   fleet.Principal // as of its last request
	tools []*capability.Definition
}

func newServers(build func() *mcp.Server) *servers {
	return &servers{build: build, byID: map[string]*list.Element{}, used: list.New()}
}

func (s *servers) of(principal string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.byID[principal]; ok {
		s.used.MoveToFront(e)
		return e.Value.(*server)
	}
	one := &server{principal: principal, server: s.build()}
	s.byID[principal] = s.used.PushFront(one)
	s.evict()
	return one
}

// evict forgets servers without sessions, the longest unused first. mu is held.
func (s *servers) evict() {
	for e := s.used.Back(); e != nil && s.used.Len() > maxServers; {
		one, before := e.Value.(*server), e.Prev()
		busy := false
		for range one.server.Sessions() {
			busy = true
			break
		}
		if !busy && before != nil {
			s.used.Remove(e)
			delete(s.byID, one.principal)
		}
		e = before
	}
}

func (s *servers) all() []*server {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*server, 0, s.used.Len())
	for e := s.used.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*server))
	}
	return out
}

// drop forgets a principal's server and closes its sessions. Closing waits for what is
// under way, so it isn't waited for.
func (s *servers) drop(principal string) {
	s.mu.Lock()
	e, ok := s.byID[principal]
	if ok {
		s.used.Remove(e)
		delete(s.byID, principal)
	}
	s.mu.Unlock()
	if !ok {
		return
	}
	for session := range e.Value.(*server).server.Sessions() {
		go func() { _ = session.Close() }()
	}
}

func (s *server) owner() (fleet.Principal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.who, s.who.ID != ""
}

// sync makes the server's forwarded tools those that who may use now.
func (s *server) sync(a *API, who fleet.Principal) {
	want := a.fleet.Tools(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.who = who
	if slices.Equal(s.tools, want) {
		return
	}
	var gone []string
	for _, d := range s.tools {
		if !slices.Contains(want, d) {
			gone = append(gone, d.Name)
		}
	}
	if len(gone) > 0 {
		s.server.RemoveTools(gone...)
	}
	for _, d := range want {
		if t, ok := a.tools[d.Name]; ok && !slices.Contains(s.tools, d) {
			s.server.AddTool(t.tool, t.handler)
		}
	}
	s.tools = slices.Clone(want)
}
