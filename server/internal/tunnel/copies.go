package tunnel

import (
	"context"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// Times of what's done about copies of an agent's state.
const (
	// duplicateNote is how long operators are shown that a duplicate was seen, forkNote that an
	// old copy was, and that a copy has served.
	duplicateNote = 15 * time.Minute
	forkNote      = 7 * 24 * time.Hour
	// noteEvery spaces the rows of the record about one agent's copies and one reason, noteMoves
	// the changes of a note's time.
	noteEvery = 10 * time.Minute
	noteMoves = time.Minute
	// renewQuiet is how long an agent that shall connect anew may go on without a moment in
	// which it has no calls; one of version 1, whose calls don't survive it, renewPatience.
	renewQuiet    = 3 * time.Second
	renewPatience = 15 * time.Minute
	renewLook     = 50 * time.Millisecond
	// renewEvery spaces the times that one agent is asked to.
	renewEvery = time.Minute
	// renewTime is how long it may take to be back.
	renewTime = 5 * time.Second
)

// claim decides whether a process with a proven key becomes the agent's connected one, and
// finds the connection that gives way. The same process or a dead connection does, another
// living process doesn't: see fleet.Verdict, and NextEpoch, where it's decided for all
// replicas and for good.
func (s *Server) claim(ctx context.Context, h *greeting) (old presence.Entry, epoch int64, err error) {
	old, online := s.cfg.Presence.Lookup(h.id)
	c := fleet.Claim{Agent: h.id, Generation: h.hello.Generation, Instance: h.hello.Instance, LastEpoch: h.hello.LastEpoch}
	if !online || old.Generation == c.Generation && old.Instance != c.Instance {
		c.Beside = s.otherAlive(ctx, h, old, online)
	}
	epoch, verdict, err := s.cfg.Store.NextEpoch(ctx, c)
	if err != nil {
		return old, 0, busy(err, "the connection couldn't be recorded")
	}
	now := time.Now()
	switch verdict {
	case fleet.Forked:
		s.noteCopy(h.id, "forked", now.Add(forkNote))
		return old, 0, refuse(protocol.CodeConflict, "quarantined", retryRemoved,
			"this state of agent %s is old: another process with the same key has been connected since, and calls may have run there; if this is the right host, enrol it anew: drover enroll create --replace", h.id)
	case fleet.Duplicate:
		s.noteCopy(h.id, "duplicate", now.Add(duplicateNote))
		if c.Beside {
			s.renew(h.id, old, online)
			return old, 0, refuse(protocol.CodeConflict, "duplicate", retryLater,
				"agent %s is connected from another process with the same key; a copied state folder needs its own: drover enroll create", h.id)
		}
		return old, 0, refuse(protocol.CodeConflict, "duplicate", retryLater,
			"agent %s was connected from another process with the same state, and is kept for that one; if that one is gone, enrol this anew: drover enroll create --replace", h.id)
	case fleet.Reclaimed:
		if s.quiet.Allow("a copy was in its place", string(h.id), now) {
			s.cfg.Log.Error("a copy of an agent's state was connected in its place; the first one is back, and the copy is shut out: calls since may have run on the copy's host",
				"agent", string(h.id), "epoch", epoch)
		}
		s.quarantine(h.id, "replaced", now.Add(forkNote))
	case fleet.Admitted:
	}
	return old, epoch, nil
}

// noteCopy shows operators that a copy was refused, unless they are shown something graver
// or were shown the same lately: who connects again and again makes few rows of it.
func (s *Server) noteCopy(id fleet.AgentID, reason string, until time.Time) {
	now := time.Now()
	q, noted := s.cfg.Store.Quarantined(id)
	if noted && (q.Reason == "violations" || q.Reason == "replaced") && now.Before(q.Until) {
		return
	}
	if noted && q.Reason == reason && now.Before(q.At.Add(noteMoves)) || !s.notes.due(id, reason, noted && q.Reason != reason, now) {
		return
	}
	s.quarantine(id, reason, until)
}

// notes are the reasons for which copies of agents were refused, and when they were noted.
type notes struct {
	mu sync.Mutex
	at map[note]time.Time
}

type note struct {
	agent  fleet.AgentID
	reason string
}

// due tells whether a note shall be written, and counts it. One that takes another's place,
// which is a row of the record, is once in noteEvery.
func (n *notes) due(id fleet.AgentID, reason string, instead bool, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, at := range n.at {
		if now.Sub(at) >= noteEvery {
			delete(n.at, k)
		}
	}
	if n.at == nil {
		n.at = map[note]time.Time{}
	}
	k := note{id, reason}
	if _, lately := n.at[k]; lately && instead {
		return false
	}
	n.at[k] = now
	return true
}

// otherAlive tells whether another process with the agent's key answers, here or on another
// replica.
func (s *Server) otherAlive(ctx context.Context, h *greeting, old presence.Entry, here bool) bool {
	ctx, cancel := context.WithTimeout(ctx, duplicateWait)
	defer cancel()
	if here {
		return old.Session.Ping(ctx) == nil
	}
	return s.cfg.Elsewhere != nil && s.cfg.Elsewhere(ctx, h.id, h.hello.Generation, h.hello.Instance)
}

// renewals are the agents that were asked to connect anew, and when.
type renewals struct {
	mu    sync.Mutex
	asked map[fleet.AgentID]asked
}

type asked struct {
	at    time.Time
	again int64 // the epoch that it shall leave when it may be asked again; 0 for none
}

// due tells after how long the agent may be asked to leave this epoch, and notes that it is
// then; false when another one waits for that already.
func (r *renewals) due(id fleet.AgentID, epoch int64, now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, a := range r.asked {
		if now.Sub(a.at) >= renewEvery && a.again == 0 {
			delete(r.asked, other)
		}
	}
	if r.asked == nil {
		r.asked = map[fleet.AgentID]asked{}
	}
	a, recent := r.asked[id]
	if !recent {
		r.asked[id] = asked{at: now}
		return 0, true
	}
	waits := a.again != 0
	r.asked[id] = asked{at: a.at, again: max(a.again, epoch)}
	return a.at.Add(renewEvery).Sub(now), !waits
}

// begin notes that the agent is asked now, after it waited, and tells which epoch it leaves.
func (r *renewals) begin(id fleet.AgentID, now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	epoch := r.asked[id].again
	r.asked[id] = asked{at: now}
	return epoch
}

// recent tells whether the agent was asked not long before now.
func (r *renewals) recent(id fleet.AgentID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.asked[id]
	return ok && now.Sub(a.at) < renewQuiet+renewTime
}

// renew lets the agent that's connected connect anew, here or on another replica: with the
// epoch that it stores then, the copy that was seen is an old one for good. Until then the
// identity is kept for it by the database.
func (s *Server) renew(id fleet.AgentID, old presence.Entry, here bool) {
	if here {
		s.Renew(id, old.Epoch)
	} else if s.cfg.RenewElsewhere != nil {
		s.cfg.RenewElsewhere(id)
	}
}

// Renew lets the agent connect anew if the connection of this epoch is here, once a minute at
// most (when it's asked sooner, at the end of that) and in a moment without calls if there is
// one. If it isn't here, it's Expected to be back on another replica soon. It doesn't block.
func (s *Server) Renew(id fleet.AgentID, epoch int64) {
	wait, due := s.renewals.due(id, epoch, time.Now())
	switch {
	case !due:
	case wait <= 0:
		s.renewNow(id, epoch)
	default: // one that has connected anew by itself meanwhile is told from the copy
		time.AfterFunc(wait, func() { s.renewNow(id, s.renewals.begin(id, time.Now())) })
	}
}

func (s *Server) renewNow(id fleet.AgentID, epoch int64) {
	e, ok := s.cfg.Presence.Lookup(id)
	if !ok || e.Epoch != epoch || !s.enter() {
		return
	}
	go func() {
		defer s.all.Done()
		defer fault.Catch(func(p *fault.Panic) {
			s.cfg.Metrics.Caught(s.cfg.Log, obs.InTunnel, p, "agent", string(id), "epoch", epoch)
			e.Session.Close(0, "") // it connects anew
		})
		patience := renewQuiet
		if e.Session.Version() < 2 {
			patience = renewPatience
		}
		quiet := untilQuiet(s.ctx, e, patience)
		if !quiet && e.Session.Version() < 2 || !e.Session.Alive() {
			return
		}
		s.cfg.Log.Info("an agent of which a copy was seen shall connect anew, to be told from it", "agent", string(id), "epoch", epoch)
		e.Session.Goodbye("a copy of this agent's state was seen: connect again, to be told from it", 0)
	}()
}

// untilQuiet waits until the connection has no calls; false when patience was over before.
func untilQuiet(ctx context.Context, e presence.Entry, patience time.Duration) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	look := time.NewTicker(renewLook)
	defer look.Stop()
	for e.Calls() > 0 && e.Session.Alive() {
		select {
		case <-look.C:
		case <-late.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Expected tells that the agent isn't online, but will be within seconds: it's just being let
// in, or connects anew because a copy of it was seen.
func (s *Server) Expected(id fleet.AgentID) bool {
	if s.cfg.Presence.Arriving(id) || s.renewals.recent(id, time.Now()) {
		return true
	}
	q, noted := s.cfg.Store.Quarantined(id)
	return noted && (q.Reason == "duplicate" || q.Reason == "replaced") && time.Since(q.At) < renewTime+renewQuiet
}
