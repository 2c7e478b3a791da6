// Package server wires a replica together: the store, who may do what, the path of a
// call, the tunnels and the two HTTP edges.
package server

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/cluster"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/mcpapi"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/server/internal/session"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// Server is one replica.
type Server struct {
	cfg      Config
	log      *slog.Logger
	db       *store.DB
	own      *store.Ownership
	key      ed25519.PrivateKey
	authn    *authn.Service
	enroll   *enroll.Service
	sessions *session.Keeper
	presence *presence.Registry
	dispatch *dispatch.Dispatcher
	bodies   *edge.Bodies
	serving  *edge.Serving
	tunnel   *tunnel.Server
	mcp      *mcpapi.API
	rest     *restapi.API
	metrics  *obs.Metrics
	trace    *tracing.Tracer // nil: no traces
	retiring sync.Map        // of presence.Session: whose calls are being ended
	jobs     jobStopper
	bus      *cluster.Bus // to the other replicas; nil when this server is alone
	member   membership
	leaving  atomic.Bool // each answer is the last on its connection
	listener net.Listener
	http     *http.Server
}

// New opens the store, migrates it, and takes it and the address, so that a busy port, a damaged
// database or a server that has it already is reported before anything is served. The caller must call Run or Close.
func New(cfg Config, log *slog.Logger) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("the data folder: %w", err)
	}
	s := &Server{cfg: cfg, log: log}
	_, missing := os.Stat(cfg.ServerKeyFile)
	if s.key, err = enroll.LoadServerKey(cfg.ServerKeyFile); errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("this user may not use the server's files (%w): run it as their owner, or give another folder with --data", err)
	}
	if err != nil {
		return nil, err
	}
	s.db, err = store.Open(context.Background(), store.Config{DataDir: cfg.DataDir, DatabaseURL: cfg.DatabaseURL, Key: s.key, Log: log})
	if err != nil {
		return nil, err
	}
	// The data before the address: of a server that has both, the data are what matters.
	if err := s.takeData(context.Background(), missing != nil); err != nil {
		_ = s.Close()
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		_ = s.Close()
		return nil, err
	}
	if err := s.wire(); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// wire makes the parts and joins them.
func (s *Server) wire() error {
	var err error
	s.trace, err = tracing.New(context.Background(), tracing.Self{Version: s.cfg.Version, Instance: s.db.Instance()}, s.log)
	if err != nil {
		return err
	}
	s.metrics = obs.NewMetrics(s.cfg.Version)
	s.metrics.Named(s.db.Instance())
	s.authn = authn.New(s.db)
	s.sessions, err = session.New(session.Config{Key: s.key, File: filepath.Join(s.cfg.DataDir, session.File), Tell: s.sessionEnded, Log: s.log})
	if err != nil {
		return err
	}
	s.presence = presence.New(func(id fleet.AgentID, _ bool) { s.presenceChanged(id) })
	quiet := new(obs.Quiet)
	path := dispatch.Config{
		Store: s.db, Router: s.presence, Online: s.online, Alive: s.authn.Alive, Principal: s.authn.ByID,
		Fenced: s.fenced, ResumeWait: s.cfg.ResumeWait, CancelWait: s.cfg.CancelWait, Metrics: s.metrics, Trace: s.trace, Log: s.log,
		Expected: s.expected, Quiet: quiet,
	}
	if s.cfg.NatsURL != "" {
		if err := s.joinOthers(&path); err != nil {
			return err
		}
	}
	s.dispatch, s.bodies, s.serving = dispatch.New(path), edge.NewBodies(s.authn.Alive), edge.NewServing(s.authn.Alive)
	s.enroll = enroll.New(enroll.Config{Store: s.db, ServerKey: s.key, Log: s.log, CloseAgent: s.closeAgent})
	tunnels := tunnel.Config{
		Store: s.db, Presence: s.presence, ServerKey: s.key, KeepAlive: s.cfg.KeepAlive, Log: s.log,
		Online: s.agentOnline, Metrics: s.metrics, Quiet: quiet,
	}
	if s.bus != nil {
		tunnels.Elsewhere, tunnels.RenewElsewhere = s.bus.Alive, s.bus.Renew
	}
	s.tunnel = tunnel.New(tunnels)
	s.mcp = mcpapi.New(mcpapi.Config{
		Dispatch: s.dispatch, Fleet: s.dispatch, Bodies: s.bodies, Trace: s.trace, Metrics: s.metrics, Log: s.log, Version: s.cfg.Version, Stateless: s.cfg.NatsURL != "",
	})
	s.rest, err = restapi.New(restapi.Config{
		Dispatch: s.dispatch, PATs: s.authn, Enrolment: s.enroll, Store: s.db, Fenced: s.fenced, Bodies: s.bodies, Serving: s.serving, Metrics: s.metrics.Handler(), Sessions: s.sessions, EnrollCommand: s.cfg.EnrollCommand,
		Secure: strings.HasPrefix(s.cfg.PublicURL, "https:"), Log: s.log, Version: s.cfg.Version,
	})
	if err != nil {
		return err
	}
	s.measure()
	handler, err := s.routes()
	if err != nil {
		return err
	}
	s.http = &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	return nil
}

// online is what presence knows of an agent, for lists.
func (s *Server) online(id fleet.AgentID) (bool, time.Time) {
	if s.bus != nil {
		return s.bus.Online(id)
	}
	online, since, _ := s.presence.State(id)
	return online, since
}

// closeAgent ends what a removed or re-keyed agent still has open here.
func (s *Server) closeAgent(id fleet.AgentID, code int, reason string) {
	if e, ok := s.presence.Lookup(id); ok {
		s.retire(e, code, reason)
	}
	s.dispatch.Enforce()
}

// URL is where this server listens, as http://HOST:PORT.
func (s *Server) URL() string {
	a := s.listener.Addr().(*net.TCPAddr)
	host := a.IP.String()
	if a.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(a.Port))
}

// Run serves until ctx is done, then drains: no new calls, running ones get DrainTimeout,
// agents are told to come back. It returns nil after an orderly end.
func (s *Server) Run(ctx context.Context) error {
	defer func() { _ = s.Close() }()
	leave, err := s.enterService(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // stopped while it started
	case err != nil:
		return err
	}
	defer leave()
	watch, stop := context.WithCancel(context.Background())
	watched := make(chan struct{})
	// A panic in one of these ends the process: a server that no longer enforces rights mustn't go on.
	go func() { defer close(watched); s.watch(watch) }()
	touched := make(chan error, 1)
	go func() { touched <- s.tunnel.Run(watch) }()
	defer func() { stop(); <-watched; s.jobs.all.Wait(); <-touched }()

	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	s.announce()
	host, _ := os.Hostname() // only for the log
	s.log.Info("serving", "replica", s.db.Instance(), "host", host, "listen", s.listener.Addr().String(), "url", s.URL(), "store", s.db.Engine(), "data", s.cfg.DataDir, "version", s.cfg.Version)
	select {
	case err := <-failed:
		return fmt.Errorf("http: %w", err)
	case <-s.own.Lost():
		s.dispatch.Disown()
		return errors.Join(errors.New("another Drover server has taken this one's database while the connection to it was lost: this one stops, and leaves its open calls to that one; run one server on a database, or several with --nats-url"), s.shutdown(0))
	case <-ctx.Done():
	}
	s.log.Info("stopping", "open_calls", s.dispatch.Open())
	return s.shutdown(s.cfg.DrainTimeout)
}

// fenced tells that this server may start nothing now: its calls may be others'.
func (s *Server) fenced() bool { return !s.own.Held() || s.bus != nil && s.member.fenced() }

// closeTimeout is how long tunnels have to end once calls no longer hold them, and as long again
// requests: what waits for a call on a tunnel that must be cut is only answered then.
const closeTimeout = 5 * time.Second

func (s *Server) shutdown(patience time.Duration) error {
	s.rest.Draining()
	if s.bus != nil && patience > 0 {
		s.giveWay()
	}
	drain, drained := context.WithTimeout(context.Background(), patience)
	defer drained()
	s.dispatch.Drain(drain)
	if s.bus != nil {
		s.bus.AwaitFiles(drain)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.tunnel.Close(ctx); err != nil {
		s.log.Warn("some tunnels were cut", "err", err)
	}
	ctx, done := context.WithTimeout(context.Background(), closeTimeout)
	defer done()
	s.dispatch.Settle(ctx)
	s.mcp.EndStreams()
	err := s.http.Shutdown(ctx)
	s.mcp.Close()
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return s.http.Close()
}

// URLFile is the file in the data folder that names how the running server is reached, for
// commands beside it that print what to paste elsewhere.
const URLFile = "server.url"

// announce writes URLFile; without it commands print a placeholder.
func (s *Server) announce() {
	url := s.cfg.PublicURL
	if url == "" {
		url = s.URL()
	}
	if err := os.WriteFile(filepath.Join(s.cfg.DataDir, URLFile), []byte(url+"\n"), 0o600); err != nil {
		s.log.Warn("the file with the server's URL could not be written", "err", err)
	}
}

// flushTime is how long the collector of traces has to take the last ones.
const flushTime = 2 * time.Second

// Close releases what New took. Run does it by itself.
func (s *Server) Close() error {
	if s.listener != nil {
		_ = s.listener.Close()
	}
	if s.own != nil {
		_ = s.own.Release() // the process' end would do it as well
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	s.trace.Close(ctx)
	return s.db.Close()
}

// watch keeps what runs in step with the policy, whoever changed it: a revoked credential
// or a removed agent ends its calls and streams here within a second.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	version, pruned := int64(-1), time.Now()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if snap := s.db.Snapshot(); snap.Version != version || n%10 == 0 { // expiry moves no version
			version = snap.Version
			s.enforce(snap)
			s.stopJobs(ctx, snap)
		}
		s.serving.Enforce() // after the calls: they end for the policy's reason. A sign-out moves no version either
		if time.Since(pruned) > 10*time.Minute {
			pruned = time.Now()
			if _, err := s.db.PruneResults(ctx, s.cfg.ResultTTL); err != nil {
				s.log.Warn("old results could not be pruned", "err", err)
			}
		}
	}
}

// enforce closes what the policy no longer allows.
func (s *Server) enforce(snap *store.Snapshot) {
	for _, e := range s.presence.List() {
		if a := snap.Agents[e.Agent]; a == nil || a.Generation != e.Generation {
			s.retire(e, protocol.CloseRemoved, "the agent was removed, or given a new key")
		}
	}
	s.dispatch.Enforce()
	s.mcp.Enforce(s.authn.Alive)
}
