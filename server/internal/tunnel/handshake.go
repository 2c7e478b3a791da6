package tunnel

import (
	"context"
	"crypto/ed25519"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
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

// peer is an agent that passed the handshake.
type peer struct {
	id         fleet.AgentID
	generation int64
	epoch      int64
	version    int // of the protocol
	session    *mux.Session
	facts      factsBox
	ready      atomic.Bool // Config.Online was told
	bye        atomic.Bool // its goodbye is in the log
	acked      atomic.Bool // its epoch is being acknowledged, or was
}

// refusal ends a handshake; the agent is told.
type refusal struct {
	protocol.Refuse
	err error // for the log
}

func (r *refusal) Error() string { return r.Reason + ": " + r.Message }

func refuse(code protocol.Code, reason string, retry time.Duration, format string, args ...any) *refusal {
	return &refusal{Refuse: protocol.Refuse{Type: protocol.TypeRefuse, Code: code, Reason: reason,
		Message: fmt.Sprintf(format, args...), RetryAfterMS: retry.Milliseconds()}}
}

// Waiting times that refusals ask for.
const (
	retryLater   = 5 * time.Minute
	retryRemoved = time.Hour
)

// busy asks an agent to come back in a moment, each at another time.
func busy(err error, message string) *refusal {
	r := refuse(protocol.CodeUnavailable, "busy", 3*time.Second+rand.N(5*time.Second), "%s; come back in a moment", message)
	r.err = err
	return r
}

// handshake makes a known agent of a connection, or tells with what to close it. ctx ends
// with the connection's place.
func (s *Server) handshake(ctx context.Context, place *ticket, conn *wsconn.Conn, remote string) (p *peer, code int, reason string) {
	ctx, cancel := context.WithTimeout(ctx, protocol.HandshakeTimeout)
	defer cancel()
	h := greeting{place: place}
	p, err := s.greet(ctx, conn, &h)
	if err == nil {
		return p, 0, ""
	}
	log := s.cfg.Log.With("remote", remote, "agent", text.Line(h.hello.AgentID, 64))
	var r *refusal
	if !errors.As(err, &r) {
		if cause := context.Cause(ctx); errors.Is(cause, errShed) {
			err = cause
		}
		if s.quiet.Allow("handshake failed", "", time.Now()) {
			if h.unknown { // who gets no proof that is made for its key hangs up
				log = log.With("unknown", "no agent of this server has this id and generation", "generation", h.hello.Generation)
			}
			log.Info("handshake failed", "error", text.Line(err.Error(), 256))
		}
		return nil, 0, ""
	}
	if s.quiet.Allow("agent refused ("+r.Reason+")", h.proven(), time.Now()) {
		if r.err != nil {
			log = log.With("error", r.err)
		}
		log.Warn("agent refused", "reason", r.Reason, "message", r.Message)
	}
	if s.write(ctx, conn, &r.Refuse) != nil {
		return nil, 0, ""
	}
	return nil, protocol.CloseRefused, r.Reason
}

// greeting is what one handshake knows so far.
type greeting struct {
	place   *ticket
	hello   protocol.Hello
	raw     []byte // the hello's bytes, which the signatures cover
	id      fleet.AgentID
	version int
	agent   *fleet.Agent
	removed bool
	known   bool // it has proved its key
	unknown bool // the store has no key of that agent and generation; never told to the peer
}

// proven is the agent's id once it has proved its key, else "".
func (h *greeting) proven() string {
	if !h.known {
		return ""
	}
	return string(h.id)
}

func (s *Server) greet(ctx context.Context, conn *wsconn.Conn, h *greeting) (*peer, error) {
	if err := s.readHello(ctx, conn, h); err != nil {
		return nil, err
	}
	if err := s.prove(ctx, conn, h); err != nil {
		return nil, err
	}
	h.known = true
	if err := s.admissible(h); err != nil {
		return nil, err
	}
	if !s.locks.lock(ctx, h.id) {
		return nil, busy(nil, "another connection of this agent is being set up")
	}
	defer s.locks.unlock(h.id)
	return s.welcome(ctx, conn, h)
}

func (s *Server) readHello(ctx context.Context, conn *wsconn.Conn, h *greeting) error {
	raw, err := h.read(ctx, conn, protocol.TypeHello, &h.hello)
	if err != nil {
		return err
	}
	h.raw = raw
	id, ok := fleet.ParseAgentID(h.hello.AgentID)
	switch {
	case !ok:
		return refuse(protocol.CodeUnauthenticated, "unknown", retryLater, "this isn't an agent id")
	case h.hello.Generation < 1 || h.hello.LastEpoch < 0 || h.hello.Instance == "" || len(h.hello.Instance) > protocol.MaxName || len(h.hello.Versions) > 64:
		return refuse(protocol.CodeBadArgs, "malformed", retryLater, "the hello has a value out of range")
	}
	if bad := badCapabilities(h.hello.Capabilities); bad != "" {
		return refuse(protocol.CodeBadArgs, "malformed", retryLater, "the hello has %s", bad)
	}
	h.id = id
	if h.version, ok = protocol.Negotiate(h.hello.Versions); !ok {
		return refuse(protocol.CodeUnsupported, "version", retryLater,
			"this server speaks protocol versions %d to %d; update whichever is older", protocol.MinVersion, protocol.Version)
	}
	return nil
}

// prove exchanges signatures. An id or a key that isn't known gets a challenge like any
// other, and the same refusal as a wrong signature: who has no key learns nothing.
func (s *Server) prove(ctx context.Context, conn *wsconn.Conn, h *greeting) error {
	agent, key, removed, err := s.cfg.Store.AgentForTunnel(ctx, h.id, h.hello.Generation)
	if err != nil {
		return busy(err, "the server's database doesn't answer")
	}
	h.agent, h.removed = agent, removed
	known := agent != nil && len(key) == ed25519.PublicKeySize
	h.unknown = !known
	if !known {
		key = make(ed25519.PublicKey, ed25519.PublicKeySize)
		crand.Read(key)
	}
	nonce := make([]byte, protocol.NonceSize)
	crand.Read(nonce)
	if _, err := protocol.UnB64(h.hello.Nonce, protocol.NonceSize); err != nil {
		return refuse(protocol.CodeBadArgs, "malformed", retryLater, "the hello's nonce must be %d bytes in base64url", protocol.NonceSize)
	}
	pub := s.cfg.ServerKey.Public().(ed25519.PublicKey)
	err = s.write(ctx, conn, &protocol.Challenge{Type: protocol.TypeChallenge, Nonce: protocol.B64(nonce),
		Signature: protocol.B64(ed25519.Sign(s.cfg.ServerKey, protocol.ServerTranscript(h.raw, nonce, key, pub)))})
	if err != nil {
		return err
	}
	var auth protocol.Auth
	if _, err := h.read(ctx, conn, protocol.TypeAuth, &auth); err != nil {
		return err
	}
	sig, err := protocol.UnB64(auth.Signature, ed25519.SignatureSize)
	if err != nil || !ed25519.Verify(key, protocol.AgentTranscript(h.raw, nonce, key, pub), sig) || !known {
		return refuse(protocol.CodeUnauthenticated, "unknown", retryLater,
			"no agent of this server has this id and key; enrol it with a token from: drover enroll create")
	}
	return nil
}

// admissible refuses, by name, an agent that has proved its key.
func (s *Server) admissible(h *greeting) error {
	if h.removed {
		return refuse(protocol.CodeDenied, "removed", retryRemoved, "agent %s was removed by an operator, and its id isn't used again; to have this host back, enrol it under a new id (drover-agent enroll --replace), else uninstall the agent", h.id)
	}
	if h.agent.Generation != h.hello.Generation {
		return refuse(protocol.CodeUnauthenticated, "generation", retryRemoved,
			"agent %s was enrolled again with a newer key (generation %d); this one is void", h.id, h.agent.Generation)
	}
	left := s.marks.left(h.id, time.Now())
	if q, noted := s.cfg.Store.Quarantined(h.id); noted && q.Reason == "violations" { // before a restart, or by another replica
		left = max(left, time.Until(q.Until))
	}
	if left > 0 {
		return refuse(protocol.CodeDenied, "quarantined", left, "agent %s broke the protocol repeatedly; it's quarantined for %s", h.id, left.Round(time.Second))
	}
	return nil
}

func (s *Server) welcome(ctx context.Context, conn *wsconn.Conn, h *greeting) (*peer, error) {
	old, epoch, err := s.claim(ctx, h)
	if err != nil {
		return nil, err
	}
	if old.Session != nil {
		old.Session.Close(protocol.CloseReplaced, "a newer connection of this agent took over")
	}
	p := &peer{id: h.id, generation: h.hello.Generation, epoch: epoch, version: h.version}
	facts := cleanFacts(h.hello.Facts)
	if was := h.agent.Facts.Hostname; was != "" && was != facts.Hostname && s.quiet.Allow("hostname changed", string(h.id), time.Now()) {
		s.cfg.Log.Warn("an agent's hostname has changed: if this is another host, its state folder was copied or moved",
			"agent", string(h.id), "was", was, "hostname", facts.Hostname)
	}
	facts.ClockAheadMS = 0
	if h.version >= 2 { // it tells after the welcome, usually the same as last time
		facts.ClockAheadMS = h.agent.Facts.ClockAheadMS
	}
	p.facts.heard(&protocol.FactsUpdate{Facts: facts, Capabilities: h.hello.Capabilities})
	// Before it counts as online: the first call must find what the agent offers.
	if err := s.cfg.Store.UpdateFacts(ctx, h.id, epoch, facts, h.hello.Capabilities); err != nil {
		return nil, busy(err, "the connection couldn't be recorded")
	}
	s.prepare(p, conn)
	// Calls that come from here on wait in the session until the welcome is out.
	_, ok := s.cfg.Presence.Register(presence.Entry{Agent: h.id, Generation: h.hello.Generation, Epoch: epoch,
		Instance: h.hello.Instance, Since: time.Now(), Session: p.session, Calls: p.session.Open, Going: p.session.Going})
	if !ok {
		p.session.Close(protocol.CloseGoingAway, "the server is stopping")
		return nil, errors.New("the server is stopping")
	}
	runs := false
	defer func() { // also after a panic: nobody else ends a session that never ran
		if !runs {
			p.session.Close(0, "")
		}
	}()
	if err := s.write(ctx, conn, s.welcomeFrame(h.version, epoch)); err != nil {
		return nil, err
	}
	conn.Established()
	if h.version < 2 {
		s.ready(p)
	}
	if s.quiet.Allow("agent online", string(h.id), time.Now()) {
		s.cfg.Log.Info("agent online", "agent", string(h.id), "epoch", epoch, "generation", h.hello.Generation)
	}
	runs = true
	return p, nil
}

func (s *Server) welcomeFrame(version int, epoch int64) *protocol.Welcome {
	w := &protocol.Welcome{Type: protocol.TypeWelcome, Version: version, Epoch: epoch,
		KeepAliveMS: s.cfg.KeepAlive.Milliseconds(), ServerTime: time.Now().UnixMicro()}
	if s.cfg.NextServerKey != nil {
		w.NextServerKey = protocol.B64(s.cfg.NextServerKey)
		w.NextServerKeySignature = protocol.B64(ed25519.Sign(s.cfg.ServerKey, protocol.NextKeyTranscript(s.cfg.NextServerKey)))
	}
	return w
}

// prepare makes the peer's session. It's registered before Run; calls wait meanwhile.
func (s *Server) prepare(p *peer, conn *wsconn.Conn) {
	p.session = mux.New(conn, mux.Config{
		KeepAlive: s.cfg.KeepAlive,
		Version:   p.version,
		Notify:    func(f any) { s.onFrame(p, f) },
		Ended:     func(err error) { s.cfg.Presence.Unregister(p.id, p.epoch, p.brokeOff(err)) },
		Panicked: func(call string, x *fault.Panic) {
			s.cfg.Metrics.Caught(s.cfg.Log, obs.InTunnel, x, "agent", string(p.id), "epoch", p.epoch, "call", call)
		},
	})
}

func (s *Server) write(ctx context.Context, conn *wsconn.Conn, frame any) error {
	b, err := protocol.Encode(frame)
	if err != nil {
		return err
	}
	return conn.Write(ctx, false, b)
}

// read reads one frame of the handshake and returns a copy of its bytes.
func (h *greeting) read(ctx context.Context, conn *wsconn.Conn, want protocol.Type, v any) ([]byte, error) {
	h.place.waiting(true)
	bin, msg, err := conn.Read(ctx)
	h.place.waiting(false)
	if err != nil {
		return nil, err
	}
	t, err := protocol.PeekType(msg)
	if bin || err != nil || t != want {
		return nil, refuse(protocol.CodeBadArgs, "malformed", retryLater, "expected a %s frame", want)
	}
	if err := protocol.DecodeInto(msg, v); err != nil {
		return nil, refuse(protocol.CodeBadArgs, "malformed", retryLater, "the %s frame: %v", want, err)
	}
	return append([]byte(nil), msg...), nil
}
