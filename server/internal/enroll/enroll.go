// Package enroll decides who may be an agent: one-time tokens, agent keys and their
// generations, removal. A token is never stored: the server keeps the public key that the
// token's signatures are checked with.
package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Bounds of a token's life.
const (
	DefaultTTL = 24 * time.Hour
	MaxTTL     = 30 * 24 * time.Hour
)

// Config sets up a Service. Store and ServerKey are required.
type Config struct {
	Store     Store
	ServerKey ed25519.PrivateKey
	Log       *slog.Logger // nil: nothing is logged
	// CloseAgent ends the agent's tunnel, if there is one, after its removal or when a new
	// key replaced its own; code and reason are for the agent. nil where no tunnels are.
	CloseAgent func(id fleet.AgentID, code int, reason string)
}

// Service makes, lists and revokes tokens, enrols and removes agents. Every act writes its
// audit row in the same transaction.
type Service struct {
	cfg   Config
	slots chan struct{} // enrolments that run
}

// maxEnrolments bounds the enrolments that run at once.
const maxEnrolments = 32

// New makes a service.
func New(cfg Config) *Service {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CloseAgent == nil {
		cfg.CloseAgent = func(fleet.AgentID, int, string) {}
	}
	return &Service{cfg: cfg, slots: make(chan struct{}, maxEnrolments)}
}

// Spec says what a token shall be good for.
type Spec struct {
	Agent   string            // the agent id that the host gets
	Labels  map[string]string // the operator's
	TTL     time.Duration     // DefaultTTL when zero, at most MaxTTL
	Replace bool              // a new key for an agent that exists
}

// Create makes a token. text is shown once and never again. by is the principal.
func (s *Service) Create(ctx context.Context, by string, spec Spec) (text string, t *Token, err error) {
	if err := fleet.CheckAgentID(spec.Agent); err != nil {
		return "", nil, err
	}
	id := fleet.AgentID(spec.Agent)
	if err := fleet.CheckLabels(spec.Labels); err != nil {
		return "", nil, err
	}
	if spec.TTL == 0 {
		spec.TTL = DefaultTTL
	}
	if spec.TTL < time.Second || spec.TTL > MaxTTL {
		return "", nil, fleet.Errorf(protocol.CodeBadArgs, "a token lives between 1 s and %d days", int(MaxTTL.Hours()/24))
	}
	var secret protocol.EnrolToken
	rand.Read(secret.ID[:])
	secret.ID[0] &= 0x7f // its text begins with a letter: an id on a command line is no option
	rand.Read(secret.Seed[:])
	copy(secret.Server[:], protocol.Fingerprint(s.cfg.ServerKey.Public().(ed25519.PublicKey)))
	now := time.Now()
	t = &Token{ID: protocol.B64(secret.ID[:]), Key: secret.Key().Public().(ed25519.PublicKey), Agent: id, Labels: maps.Clone(spec.Labels),
		Replace: spec.Replace, CreatedBy: by, CreatedAt: now, ExpiresAt: now.Add(spec.TTL)}
	ev := fleet.AdminEvent{Principal: by, Action: "enroll.create", Object: t.ID, At: now, Detail: map[string]string{
		"agent": string(id), "replace": strconv.FormatBool(spec.Replace), "expires": t.ExpiresAt.UTC().Format(time.RFC3339)}}
	if err := s.cfg.Store.CreateEnrolToken(ctx, *t, ev); err != nil {
		return "", nil, err
	}
	return secret.String(), t, nil
}

// List returns all tokens, newest first.
func (s *Service) List(ctx context.Context) ([]Token, error) { return s.cfg.Store.EnrolTokens(ctx) }

// Revoke ends an unused token.
func (s *Service) Revoke(ctx context.Context, by, id string) error {
	now := time.Now()
	return s.cfg.Store.RevokeEnrolToken(ctx, id, now, fleet.AdminEvent{Principal: by, Action: "enroll.revoke", Object: id, At: now})
}

// RemoveAgent makes the agent's id a tombstone and ends its tunnel.
func (s *Service) RemoveAgent(ctx context.Context, by string, id fleet.AgentID) error {
	now := time.Now()
	err := s.cfg.Store.RemoveAgent(ctx, id, now, fleet.AdminEvent{Principal: by, Action: "agent.remove", Object: string(id), At: now})
	if err != nil {
		return err
	}
	s.cfg.CloseAgent(id, protocol.CloseRemoved, "this agent was removed by an operator")
	return nil
}
