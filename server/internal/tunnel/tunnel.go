// Package tunnel accepts agents: GET /agent/v1/tunnel, the handshake, then a mux session
// that presence routes calls to. Nothing an agent sends reaches beyond its own connection.
package tunnel

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/protocol/wsconn"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// Config sets up a Server. Store, Presence, ServerKey and Log are required.
type Config struct {
	Store     Store
	Presence  *presence.Registry
	ServerKey ed25519.PrivateKey
	Log       *slog.Logger
	// KeepAlive is the interval of pings; protocol.KeepAlive when zero.
	KeepAlive time.Duration
	// MaxHandshakes bounds the connections whose agent isn't known yet; 512 when zero. More
	// are answered 503 with Retry-After, as are those of one address, loopback aside, above
	// a quarter of it. A silent connection gives way to a new one after 1.5 s.
	MaxHandshakes int
	// NextServerKey, if not nil, is announced to agents, signed with ServerKey.
	NextServerKey ed25519.PublicKey
	// Elsewhere, if not nil, tells whether another process than instance, with the agent's
	// present key, is connected to another replica and answers before ctx ends.
	Elsewhere func(ctx context.Context, id fleet.AgentID, generation int64, instance string) bool
	// RenewElsewhere, if not nil, asks the replica that has the agent's connection to Renew it.
	// It must not block.
	RenewElsewhere func(id fleet.AgentID)
	// Online, if not nil, hears that an agent is online: calls may go to it, and earlier ones
	// be asked for. It hears so once for each connection: when the agent's journal is known, or
	// 5 s later when it names none; with an agent of version 1 at once. It must not block.
	Online func(id fleet.AgentID, generation int64)
	// Quiet bounds the lines that agents cause; one of its own when nil. Run tells what it left out.
	Quiet *obs.Quiet
	// Metrics counts faults inside; nil counts nothing.
	Metrics *obs.Metrics
}

const (
	defaultHandshakes = 512
	duplicateWait     = 2 * time.Second
	storeTimeout      = 10 * time.Second
	touchEvery        = time.Minute
	bootWait          = 5 * time.Second // for the name of an agent's journal
)

// Stats are counters for metrics, since the start.
type Stats struct {
	Handshakes int64 // tried
	Refused    int64 // refused or failed
	Violations int64 // connections ended because the agent broke the protocol
	Dead       int64 // connections ended without a sign of life
}

// Server is the http.Handler for agents. New makes one; Run keeps last_seen fresh; Close
// ends what's left.
type Server struct {
	cfg    Config
	ctx    context.Context // ends at Close; sessions and their store writes hang on it
	cancel context.CancelFunc
	gate   *gate // handshakes that run
	locks  idLocks
	marks  marks
	all    sync.WaitGroup

	renewals renewals
	notes    notes
	quiet    *obs.Quiet

	mu     sync.Mutex
	closed bool

	handshakes, refused, violations, dead atomic.Int64
}

// New makes a server.
func New(cfg Config) *Server {
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = protocol.KeepAlive
	}
	if cfg.MaxHandshakes == 0 {
		cfg.MaxHandshakes = defaultHandshakes
	}
	s := &Server{cfg: cfg, gate: newGate(cfg.MaxHandshakes), quiet: cmp.Or(cfg.Quiet, new(obs.Quiet))}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{Handshakes: s.handshakes.Load(), Refused: s.refused.Load(), Violations: s.violations.Load(), Dead: s.dead.Load()}
}

// Run writes last_seen of the connected agents once a minute, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	t := time.NewTicker(touchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		s.quiet.Tell(s.cfg.Log, time.Now())
		var ids []fleet.AgentID
		for _, e := range s.cfg.Presence.List() {
			ids = append(ids, e.Agent)
		}
		if len(ids) > 0 {
			s.touch(ids...)
		}
	}
}

func (s *Server) touch(ids ...fleet.AgentID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), storeTimeout)
	defer cancel()
	if err := s.cfg.Store.TouchLastSeen(ctx, time.Now(), ids...); err != nil {
		s.cfg.Log.Warn("last_seen was not written", "agents", len(ids), "error", err)
	}
}

// Close tells every agent to come back later (each at its own time), ends all connections
// and waits for them, at most until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cfg.Presence.Drain("the server is restarting", comeBack)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.all.Wait()
	}()
	select {
	case <-done:
		s.cancel()
		return nil
	case <-ctx.Done():
		s.cancel()
		return context.Cause(ctx)
	}
}

// The agents of a stopping server come back at an even rate, within backSpread at least.
const (
	backRate   = 400 // a second
	backSpread = 4 * time.Second
	backMost   = 5 * time.Minute
)

// comeBack is when the i-th of n agents shall dial again.
func comeBack(i, n int) time.Duration {
	spread := min(max(backSpread, time.Duration(n)*time.Second/backRate), backMost)
	return time.Second + spread*time.Duration(i)/time.Duration(n) + rand.N(spread/time.Duration(n)+1)
}

// enter counts a connection, unless the server is closing.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.all.Add(1)
	return true
}

// ServeHTTP accepts one agent. It returns once the WebSocket is open; handshake and session
// run in goroutines of their own, so that a connection keeps neither the HTTP server's
// goroutine nor the request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		tooBusy(w)
		return
	}
	ctx, place, ok := s.gate.enter(s.ctx, r.RemoteAddr)
	if !ok {
		s.all.Done()
		tooBusy(w)
		return
	}
	conn, err := wsconn.Accept(w, r)
	if err != nil {
		place.leave()
		s.all.Done()
		return
	}
	go func() {
		defer s.all.Done()
		// Of the handshake, or of the connection's end; while its session runs that sees to it.
		defer fault.Catch(func(p *fault.Panic) {
			s.cfg.Metrics.Caught(s.cfg.Log, obs.InTunnel, p, "remote", r.RemoteAddr)
			place.leave()
			_ = conn.Close(0, "")
		})
		s.serve(ctx, place, conn, r.RemoteAddr)
	}()
}

// tooBusy turns a connection away; each is told another time.
func tooBusy(w http.ResponseWriter) {
	after := 2 + rand.IntN(9)
	w.Header().Set("Retry-After", strconv.Itoa(after))
	http.Error(w, fmt.Sprintf("too many agents are connecting at once; come back in %d s", after), http.StatusServiceUnavailable)
}

func (s *Server) serve(ctx context.Context, place *ticket, conn *wsconn.Conn, remote string) {
	s.handshakes.Add(1)
	p, code, reason := s.handshake(ctx, place, conn, remote)
	place.leave()
	if p == nil {
		s.refused.Add(1)
		_ = conn.Close(code, reason) // it's refused or has failed; how it closes doesn't matter
		return
	}
	s.runSession(p)
}

// runSession runs an accepted agent's session to its end. It's a function of its own so
// that the handshake's stack is gone meanwhile.
func (s *Server) runSession(p *peer) {
	if p.version >= 2 { // a journal that is never named isn't waited for
		late := time.AfterFunc(bootWait, func() {
			defer fault.Catch(p.session.Broke)
			s.ready(p)
		})
		defer late.Stop()
	}
	err := p.session.Run(s.ctx)
	s.cfg.Presence.Unregister(p.id, p.epoch, p.brokeOff(err))
	s.touch(p.id)
	s.ended(p, err)
}

// beside runs f for a connection, beside its reader. A panic there ends the connection: the
// agent connects anew, and with that begins what is kept of it.
func (s *Server) beside(p *peer, f func()) {
	s.all.Go(func() {
		defer fault.Catch(p.session.Broke)
		f()
	})
}

// brokeOff tells of a session's end that the agent may have another connection, or be about
// to: the line broke, or gave way to a newer one. Otherwise somebody decided it, or the agent
// had been silent for long.
func (p *peer) brokeOff(err error) bool {
	var v *mux.Violation
	var own *mux.ClosedError
	var theirs *protocol.CloseError
	switch {
	case errors.As(err, &own):
		return own.Code == protocol.CloseReplaced
	case p.bye.Load():
		return false
	case errors.As(err, &v), errors.As(err, &theirs), errors.Is(err, mux.ErrDead), errors.Is(err, mux.ErrSlow):
		return false
	}
	return true
}

func (s *Server) ended(p *peer, err error) {
	log := s.cfg.Log.With("agent", string(p.id), "epoch", p.epoch)
	if !s.quiet.Allow("agent offline", string(p.id), time.Now()) {
		log = slog.New(slog.DiscardHandler)
	}
	var v *mux.Violation
	var own *mux.ClosedError
	var theirs *protocol.CloseError
	switch {
	case errors.As(err, &v):
		s.violations.Add(1)
		log.Warn("agent broke the protocol and was disconnected", "reason", v.Reason)
		s.struck(p.id)
	case errors.Is(err, mux.ErrDead):
		s.dead.Add(1)
		log.Info("agent offline: no sign of life", "within", (2 * s.cfg.KeepAlive).String())
	case errors.As(err, &own):
		log.Info("agent offline: disconnected by the server", "code", own.Code, "reason", text.Line(own.Reason, 256))
	case errors.As(err, &theirs):
		log.Info("agent offline: it closed the connection", "code", theirs.Code, "reason", text.Line(theirs.Reason, 256))
	default:
		log.Info("agent offline", "reason", text.Line(err.Error(), 256))
	}
}

// struck counts a violation; the third within an hour quarantines the agent for a while.
func (s *Server) struck(id fleet.AgentID) {
	until, quarantined := s.marks.strike(id, time.Now())
	if !quarantined {
		return
	}
	s.cfg.Log.Error("agent quarantined: it broke the protocol three times", "agent", string(id), "until", until)
	s.quarantine(id, "violations", until)
}

func (s *Server) quarantine(id fleet.AgentID, reason string, until time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), storeTimeout)
	defer cancel()
	if err := s.cfg.Store.Quarantine(ctx, id, reason, time.Now(), until); err != nil {
		s.cfg.Log.Error("a quarantine was not written", "agent", string(id), "reason", reason, "error", err)
	}
}
