// Package swarm simulates thousands of agents in one process: real enrolment, handshake,
// multiplexing and keep-alive, and a handler that answers without doing anything.
package swarm

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// parallel is how many agents enrol at once; firsts is how many begin in a second, so that
// the start isn't the stampede that a restart is measured by.
const (
	parallel = 64
	firsts   = 300
)

// Config says where the swarm belongs. URL, Token and Agents are required.
type Config struct {
	URL    string
	Token  string // an administrator's PAT
	Agents int
	// Prefix begins every agent's id, which ends in its number; "sim" when empty.
	Prefix string
	// Host makes what answers an agent's calls; Answer, which knows of no earlier call, when nil.
	Host func(id string) Host
}

// Host executes the calls of one agent and tells of earlier ones.
type Host interface {
	mux.Handler
	mux.Resumer
}

// Swarm is a number of enrolled agents.
type Swarm struct {
	cfg    Config
	agents []*agent
	online atomic.Int64
	ever   atomic.Int64
	client *http.Client

	mu    sync.Mutex
	dials []time.Time
}

type agent struct {
	id       string
	instance string
	gen      int64
	key      ed25519.PrivateKey
	server   ed25519.PublicKey
	epoch    int64
	handler  mux.Handler
	resumer  mux.Resumer // or nil
}

// Enrol makes the agents: a token from the API and a key for each.
func Enrol(ctx context.Context, cfg Config) (*Swarm, error) {
	if cfg.Prefix == "" {
		cfg.Prefix = "sim"
	}
	s := &Swarm{
		cfg: cfg, agents: make([]*agent, cfg.Agents),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}},
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range s.agents {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			a, err := s.enrol(ctx, fmt.Sprintf("%s-%05d", cfg.Prefix, i))
			if err != nil {
				stop(err)
			}
			s.agents[i] = a
		})
	}
	wg.Wait()
	return s, context.Cause(ctx)
}

func (s *Swarm) enrol(ctx context.Context, id string) (*agent, error) {
	var made struct {
		Token string `json:"token"`
	}
	in := map[string]any{"agent_id": id, "labels": map[string]string{"swarm": s.cfg.Prefix}}
	if err := s.post(ctx, "/api/v1/enrolments", s.cfg.Token, in, &made); err != nil {
		return nil, err
	}
	token, err := protocol.ParseEnrolToken(made.Token)
	if err != nil {
		return nil, err
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	proof := protocol.EnrolTranscript(token.ID[:], pub, nonce, id, token.Server[:])
	var reply protocol.EnrolReply
	if err := s.post(ctx, "/agent/v1/enroll", "", protocol.EnrolRequest{
		TokenID: protocol.B64(token.ID[:]), AgentKey: protocol.B64(pub), Nonce: protocol.B64(nonce), Hostname: id,
		Signature: protocol.B64(ed25519.Sign(token.Key(), proof)), Proof: protocol.B64(ed25519.Sign(key, proof)),
	}, &reply); err != nil {
		return nil, err
	}
	server, err := protocol.UnB64(reply.ServerKey, ed25519.PublicKeySize)
	if err != nil {
		return nil, err
	}
	a := &agent{id: id, instance: rand.Text(), gen: reply.Generation, key: key, server: server, handler: Answer{}}
	if s.cfg.Host != nil {
		host := s.cfg.Host(id)
		a.handler, a.resumer = host, host
	}
	return a, nil
}

func (s *Swarm) post(ctx context.Context, path, token string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusTooManyRequests { // the server enrols a few at a time
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(mrand.N(200 * time.Millisecond)):
			return s.post(ctx, path, token, in, out)
		}
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s: %s: %s", path, resp.Status, b)
	}
	return json.Unmarshal(b, out)
}

// Run keeps all agents connected until ctx ends, and returns when all have ended.
func (s *Swarm) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, a := range s.agents {
		wg.Go(func() { s.keep(ctx, a) })
	}
	wg.Wait()
}

// Online is how many agents are connected now.
func (s *Swarm) Online() int { return int(s.online.Load()) }

// Connected is how many connections were made since the start.
func (s *Swarm) Connected() int { return int(s.ever.Load()) }

// Dials are the times at which agents have dialled since the last Dials.
func (s *Swarm) Dials() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.dials
	s.dials = nil
	return out
}

// keep connects one agent again and again, when a real one would.
func (s *Swarm) keep(ctx context.Context, a *agent) {
	var backoff protocol.Backoff
	wait := mrand.N(time.Duration(len(s.agents)) * time.Second / firsts)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = backoff.Next(s.once(ctx, a), mrand.Int64N)
	}
}

// once makes one connection and tells how it ended.
func (s *Swarm) once(ctx context.Context, a *agent) (end protocol.Ended) {
	s.mu.Lock()
	s.dials = append(s.dials, time.Now())
	s.mu.Unlock()
	var bye *protocol.Goodbye
	session, err := s.connect(ctx, a, func(f any) {
		if g, ok := f.(*protocol.Goodbye); ok {
			bye = g
		}
	})
	if err != nil {
		var de *wsconn.DialError
		var r *refusedError
		switch {
		case errors.As(err, &de):
			end.Asked = de.RetryAfter
		case errors.As(err, &r):
			end.Asked = time.Duration(r.RetryAfterMS) * time.Millisecond
		}
		return end
	}
	s.online.Add(1)
	s.ever.Add(1)
	began := time.Now()
	err = session.Run(ctx)
	s.online.Add(-1)
	end.Up = time.Since(began)
	var ce *protocol.CloseError
	if end.Told = bye != nil || errors.As(err, &ce); bye != nil {
		end.Asked = time.Duration(bye.RetryAfterMS) * time.Millisecond
	}
	return end
}

// connect makes one session. notify hears what mux.Config.Notify does.
func (s *Swarm) connect(ctx context.Context, a *agent, notify func(any)) (*mux.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*protocol.HandshakeTimeout)
	defer cancel()
	conn, err := wsconn.Dial(ctx, s.cfg.URL, s.client, nil)
	if err != nil {
		return nil, err
	}
	w, err := a.shake(ctx, conn)
	if err != nil {
		_ = conn.Close(0, "") // it failed already
		return nil, err
	}
	conn.Established()
	a.epoch = w.Epoch
	session := mux.New(conn, mux.Config{Handler: a.handler, Resumer: a.resumer, Version: w.Version, Notify: notify, KeepAlive: time.Duration(w.KeepAliveMS) * time.Millisecond})
	if session.Send(ctx, &protocol.Epoch{Type: protocol.TypeEpoch, Epoch: w.Epoch}) != nil ||
		w.Version >= 2 && session.Send(ctx, &protocol.Resume{Type: protocol.TypeResume, Boot: a.instance}) != nil {
		session.Close(0, "")
	}
	return session, nil
}

// refusedError is a server's refuse frame.
type refusedError struct{ protocol.Refuse }

func (e *refusedError) Error() string { return "refused: " + e.Message }

// shake is the agent's side of the handshake.
func (a *agent) shake(ctx context.Context, conn *wsconn.Conn) (*protocol.Welcome, error) {
	var caps []protocol.Capability
	for _, d := range capability.All() {
		caps = append(caps, protocol.Capability{Name: d.Name, Version: d.Version})
	}
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	hello, err := protocol.Encode(&protocol.Hello{
		Type: protocol.TypeHello, AgentID: a.id, Versions: protocol.Supported(), Generation: a.gen, Instance: a.instance,
		LastEpoch: a.epoch, Nonce: protocol.B64(nonce), Capabilities: caps,
		Facts: protocol.Facts{Hostname: a.id, OS: "linux", OSVersion: "simulated", Arch: "amd64", RunAs: "root", AgentVersion: "swarm"},
	})
	if err != nil {
		return nil, err
	}
	var challenge protocol.Challenge
	if err := exchange(ctx, conn, hello, &challenge); err != nil {
		return nil, err
	}
	nonce, err = protocol.UnB64(challenge.Nonce, protocol.NonceSize)
	if err != nil {
		return nil, err
	}
	sig, err := protocol.UnB64(challenge.Signature, ed25519.SignatureSize)
	own := a.key.Public().(ed25519.PublicKey)
	if err != nil || !ed25519.Verify(a.server, protocol.ServerTranscript(hello, nonce, own, a.server), sig) {
		return nil, errors.New("whoever answers isn't the server")
	}
	proof := ed25519.Sign(a.key, protocol.AgentTranscript(hello, nonce, own, a.server))
	auth, err := protocol.Encode(&protocol.Auth{Type: protocol.TypeAuth, Signature: protocol.B64(proof)})
	if err != nil {
		return nil, err
	}
	w := &protocol.Welcome{}
	return w, exchange(ctx, conn, auth, w)
}

// exchange sends a message and decodes the next one.
func exchange(ctx context.Context, conn *wsconn.Conn, send []byte, into any) error {
	if err := conn.Write(ctx, false, send); err != nil {
		return err
	}
	_, msg, err := conn.Read(ctx)
	if err != nil {
		return err
	}
	if t, err := protocol.PeekType(msg); err == nil && t == protocol.TypeRefuse {
		r := &refusedError{}
		if err := protocol.DecodeInto(msg, &r.Refuse); err != nil {
			return err
		}
		return r
	}
	return protocol.DecodeInto(msg, into)
}
