package cluster

import (
	"slices"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/session"
)

// endedPerNews is how many ended sessions one message tells of: about 150 KB at most.
const endedPerNews = 1000

// CancelElsewhere asks whichever replica has the call under way to end it.
func (b *Bus) CancelElsewhere(id fleet.CallID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.say(&news{Kind: newsCancel, Call: string(id)})
}

// Renew asks the replica that has the agent's connection to let it connect anew.
func (b *Bus) Renew(id fleet.AgentID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, ok := b.where[id]; ok {
		b.say(&news{Kind: newsRenew, Agents: []entry{{Agent: id, Epoch: at.epoch}}})
	}
}

// tellEnded tells the others of all ended sessions, also of those that others told of: a
// replica that is new has heard of none. b.mu is held.
func (b *Bus) tellEnded() {
	if b.cfg.Sessions == nil {
		return
	}
	for part := range slices.Chunk(b.cfg.Sessions.All(time.Now()), endedPerNews) {
		b.say(&news{Kind: newsEnded, Ended: part})
	}
}

// EndedSession tells the others of a session that ended here. It doesn't block.
func (b *Bus) EndedSession(s session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.say(&news{Kind: newsEnded, Ended: []session.Session{s}})
}
