package mcpapi

import (
	"container/list"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// maxServers bounds the servers that are kept; those with open sessions stay beyond it.
const maxServers = 1024

// servers keeps one SDK server per principal: building one costs more than a request.
// Both eras and all of a principal's sessions share it, so that a change of its tools is
// made in place and its open streams hear of it.
type servers struct {
	build func() *mcp.Server
	broke func(*fault.Panic) // hears of a panic while a session is closed

	mu   sync.Mutex
	byID map[string]*list.Element // of *server
	used *list.List               // the latest first
}

// maxSessions bounds the open sessions of one principal: each costs memory for as long as
// its client keeps silent. The one that was used the longest ago ends for a new one; its
// client begins again.
const maxSessions = 64

// server is the SDK's server of one principal.
type server struct {
	principal string
	server    *mcp.Server
	broke     func(*fault.Panic)

	mu    sync.Mutex
	who   fleet.Principal // as of its last request
	tools []*capability.Definition
	clock uint64            // counts uses
	used  map[string]uint64 // when each open session was used last, by its id
}

// touch notes that a session is used now; one that isn't open is nothing to note.
func (s *server) touch(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.used[session]; open {
		s.clock++
		s.used[session] = s.clock
	}
}

// opened notes a new session, and closes those beyond the bound. Closing waits for what is
// under way, so it isn't waited for.
func (s *server) opened(session string) {
	if session == "" {
		return // initialize was refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.used[session] = s.clock
	if len(s.used) <= maxSessions {
		return
	}
	// Sessions that ended by themselves go first. They're listed under the lock: what is in
	// used was open before.
	open := map[string]*mcp.ServerSession{}
	for one := range s.server.Sessions() {
		open[one.ID()] = one
	}
	maps.DeleteFunc(s.used, func(id string, _ uint64) bool { return open[id] == nil && id != session })
	for len(s.used) > maxSessions {
		oldest := session
		for id, at := range s.used {
			if at < s.used[oldest] {
				oldest = id
			}
		}
		delete(s.used, oldest)
		go hangUp(open[oldest], s.broke)
	}
}

// has tells whether a session is open.
func (s *server) has(session string) bool {
	for one := range s.server.Sessions() {
		if one.ID() == session {
			return true
		}
	}
	return false
}

func newServers(build func() *mcp.Server, broke func(*fault.Panic)) *servers {
	return &servers{build: build, broke: broke, byID: map[string]*list.Element{}, used: list.New()}
}

func (s *servers) of(principal string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.byID[principal]; ok {
		s.used.MoveToFront(e)
		return e.Value.(*server)
	}
	one := &server{principal: principal, server: s.build(), broke: s.broke, used: map[string]uint64{}}
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
		go hangUp(session, s.broke)
	}
}

// hangUp closes a session. A panic there costs that session alone.
func hangUp(session io.Closer, broke func(*fault.Panic)) {
	defer fault.Catch(broke)
	_ = session.Close()
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
