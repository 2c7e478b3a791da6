package enroll

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Token is an enrolment token as the server keeps it: never the token itself, only the
// public key that its signatures are checked with.
type Token struct {
	ID        string // base64url of 16 bytes: the token's name on the wire and in lists
	Key       ed25519.PublicKey
	Agent     fleet.AgentID
	Labels    map[string]string // the operator's, given to the agent at enrolment
	Replace   bool              // makes the next generation of an existing agent
	CreatedBy string            // the principal
	CreatedAt time.Time
	ExpiresAt time.Time
	UsedAt    time.Time         // zero until it's used
	UsedBy    ed25519.PublicKey // the agent key it was used for, nil until then
	UsedGen   int64             // the generation it made
	RevokedAt time.Time         // zero unless revoked
}

// State is used, revoked, expired or open.
func (t *Token) State(now time.Time) string {
	switch {
	case !t.UsedAt.IsZero():
		return "used"
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !now.Before(t.ExpiresAt):
		return "expired"
	default:
		return "open"
	}
}

// Enrolment is one agent key to register by one token.
type Enrolment struct {
	TokenID  string
	Key      ed25519.PublicKey
	Hostname string // cleaned and cut; for display until the first connection
	At       time.Time
}

// Store is what enrolment asks of the database. Refusals are *fleet.Error; other errors
// are failures of the database.
type Store interface {
	// CreateEnrolToken stores a token. In the same transaction it refuses an agent id that
	// exists when t.Replace is false (conflict), one that doesn't exist when it's true
	// (not_found), and one that was removed, always (conflict: a removed id is never given
	// out again). It writes the audit row ev.
	CreateEnrolToken(ctx context.Context, t Token, ev fleet.AdminEvent) error
	// EnrolToken finds a token by its id; not_found when there's none.
	EnrolToken(ctx context.Context, id string) (*Token, error)
	// EnrolTokens lists tokens, newest first.
	EnrolTokens(ctx context.Context) ([]Token, error)
	// RevokeEnrolToken ends an unused token: not_found when there's none, conflict when it
	// was used. Revoking twice is no error. It writes the audit row ev.
	RevokeEnrolToken(ctx context.Context, id string, at time.Time, ev fleet.AdminEvent) error
	// Enrol uses the token for the key, in one transaction: the token is unused, unrevoked
	// and unexpired at e.At; the agent doesn't exist (generation 1 with the token's labels)
	// or the token replaces it (the next generation, the same row; the labels are replaced
	// only if the token has any; a quarantine is cleared). A token that this same key has
	// used already returns the same agent and generation and writes nothing. Anything else
	// is unauthenticated; an id that was removed or taken meanwhile is conflict. It writes
	// the audit row ev with the generation added to its Detail.
	Enrol(ctx context.Context, e Enrolment, ev fleet.AdminEvent) (agent fleet.AgentID, generation int64, err error)
	// RemoveAgent makes the id a tombstone: its keys are void, its open tokens revoked, the
	// id is never given out again; calls and record stay. not_found when there's no such
	// agent or it's removed already. It writes the audit row ev.
	RemoveAgent(ctx context.Context, id fleet.AgentID, at time.Time, ev fleet.AdminEvent) error
	// RecordAdmin writes an audit row by itself: for refusals, which change nothing.
	RecordAdmin(ctx context.Context, ev fleet.AdminEvent) error
}
