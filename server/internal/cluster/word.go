package cluster

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol/strict"
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
		b.sayEnded(part)
	}
}

// EndedSession tells the others of a session that ended here. It doesn't block.
func (b *Bus) EndedSession(s session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sayEnded([]session.Session{s})
}

// word is what a kind of news says that came after version 1, as JSON text.
type word struct {
	Ended []session.Session `json:"ended,omitempty"`
}

// sayEnded says that sessions ended. b.mu is held.
func (b *Bus) sayEnded(s []session.Session) {
	text, err := json.Marshal(word{Ended: s})
	if err != nil {
		return // strings and numbers
	}
	b.say(&news{Kind: newsEnded, Call: string(text)})
}

// heedEnded notes sessions that ended elsewhere. What isn't understood may be about any session
// that has begun, so all of those end.
func (b *Bus) heedEnded(text string) {
	var w word
	err := strict.Unmarshal([]byte(text), &w, strict.Limits{MaxBytes: maxNews, MaxDepth: 8})
	if err == nil && len(w.Ended) > 0 {
		b.cfg.Sessions.Ended(w.Ended, time.Now())
		return
	}
	b.refuse("news of ended sessions", errUnreadable)
	b.cfg.Sessions.EndAll(time.Now())
}

// tellBroken tells of those agents' connections here that broke off, before their ends are told.
func (b *Bus) tellBroken(dirty map[fleet.AgentID]bool) {
	var broke []fleet.AgentID
	for id := range dirty {
		if _, here := b.cfg.Local.Online(id); !here && b.cfg.Local.BrokeOff(id) {
			broke = append(broke, id)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var ends []entry
	for _, id := range broke {
		if was, told := b.told[id]; told {
			ends = append(ends, was)
		}
	}
	for part := range slices.Chunk(ends, perNews) {
		b.say(&news{Kind: newsBroke, Agents: part})
	}
}
