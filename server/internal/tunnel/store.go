package tunnel

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Store is what the tunnel asks of the database. Every method is safe for concurrent use
// and bounded by its ctx.
type Store interface {
	// AgentForTunnel finds a registered agent and the public key of exactly this
	// generation. An id that never existed: nil agent, nil error. A removed agent comes back
	// with removed set (and its key, if that is still kept). A generation that was
	// superseded comes back with its own key and an agent whose Generation is the present
	// one; a generation that never existed has a nil key.
	AgentForTunnel(ctx context.Context, id fleet.AgentID, generation int64) (a *fleet.Agent, key ed25519.PublicKey, removed bool, err error)
	// NextEpoch judges a connection, by all that was known of the agent before, on any replica.
	// An admitted or reclaimed one has a number greater than every one given before for this
	// agent, also before a backup was restored (the store's incarnation is its high part); its
	// instance and number are the agent's current ones then. Forked: its LastEpoch is below what
	// the agent has acknowledged. Duplicate: it's Beside another process and not older than
	// that, or was once; the identity is kept for the other one until that has acknowledged a
	// newer epoch. Both change no epoch. A generation that isn't the present one, or a removed
	// agent: an error.
	NextEpoch(ctx context.Context, c fleet.Claim) (epoch int64, verdict fleet.Verdict, err error)
	// AckEpoch records that the agent has stored this epoch. A number below one that was
	// acknowledged already, or of another generation, changes nothing and is no error.
	AckEpoch(ctx context.Context, id fleet.AgentID, generation, epoch int64) error
	// UpdateFacts replaces what the host says of itself, already cleaned and cut. It does
	// nothing when epoch isn't the agent's current one.
	UpdateFacts(ctx context.Context, id fleet.AgentID, epoch int64, facts protocol.Facts, caps []protocol.Capability) error
	// TouchLastSeen sets last_seen of these agents to at, unless it's later already.
	TouchLastSeen(ctx context.Context, at time.Time, ids ...fleet.AgentID) error
	// Quarantine notes that something is wrong with an agent's identity or behaviour, for
	// operators to see: reason is duplicate, forked, replaced or violations; until is zero
	// when only a new key ends it. It doesn't end a live connection. A new generation clears it.
	Quarantine(ctx context.Context, id fleet.AgentID, reason string, at, until time.Time) error
	// Quarantined returns the latest note of that kind, if the agent has one.
	Quarantined(id fleet.AgentID) (fleet.Quarantine, bool)
}
