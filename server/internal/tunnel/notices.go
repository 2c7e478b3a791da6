package tunnel

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// factsBox is the latest that an agent said of itself and wasn't written yet. One writer
// at a time: an agent that repeats itself costs nothing.
type factsBox struct {
	mu      sync.Mutex
	latest  *protocol.FactsUpdate
	writing bool
	due     time.Time // when the allowance is whole again

	digest    [sha256.Size]byte // of what was heard last, but for the clock
	clock     int64             // as it was heard last, in ms
	clockTold bool              // a log line named it
}

// heard notes facts, and tells whether they're new. A clock that differs by a second more
// or less isn't: it's measured anew for each connection, and each writing is a change that
// every replica reads.
func (b *factsBox) heard(f *protocol.FactsUpdate) bool {
	clock := f.Facts.ClockAheadMS
	plain := *f
	plain.Facts.ClockAheadMS = 0
	raw, err := json.Marshal(&plain, json.Deterministic(true))
	digest := sha256.Sum256(raw)
	if d := clock - b.clock; err == nil && digest == b.digest && d > -clockSteady && d < clockSteady {
		return false
	}
	b.digest, b.clock = digest, clock
	return true
}

const (
	clockSteady = 2000        // ms
	clockSkew   = time.Minute // is worth a line
	agentLines  = 60          // a minute that an agent sends for the log itself
)

// An agent's facts are written at once up to three times, then once in factsEvery.
const (
	factsEvery = 5 * time.Second
	factsBurst = 3
)

// onFrame hears what the session itself has no use for. It's called by the reader.
func (s *Server) onFrame(p *peer, f any) {
	switch f := f.(type) {
	case *protocol.FactsUpdate:
		bad := badCapabilities(f.Capabilities)
		if p.version < 2 && f.Facts.ClockAheadMS != 0 {
			bad = "a clock, which version 1 doesn't tell"
		}
		if bad != "" {
			s.struck(p.id)
			p.session.Close(protocol.CloseViolation, bad)
			return
		}
		s.hear(p, f.Facts, f.Capabilities)
	case *protocol.Epoch:
		if f.Epoch == p.epoch && p.acked.CompareAndSwap(false, true) { // once, however often it's said
			s.beside(p, func() { s.acknowledge(p) })
		}
	case *protocol.Log:
		s.agentLog(p, f)
	case *protocol.Resume:
		if f.Boot != "" && len(f.States) == 0 {
			s.ready(p)
		}
	case *protocol.Goodbye:
		if !p.bye.CompareAndSwap(false, true) {
			return // said once already: it costs no second line
		}
		if s.quiet.Allow("agent says goodbye", string(p.id), time.Now()) {
			s.cfg.Log.Info("agent says goodbye", "agent", string(p.id), "reason", text.Line(f.Reason, 256))
		}
	}
}

// ready lets calls go to an agent and tells, once, that its earlier ones can be asked for.
func (s *Server) ready(p *peer) {
	if p.session.Alive() && p.ready.CompareAndSwap(false, true) && s.cfg.Presence.Ready(p.id, p.epoch) && s.cfg.Online != nil {
		s.cfg.Online(p.id, p.generation)
	}
}

func (s *Server) acknowledge(p *peer) {
	ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	e, ok := s.cfg.Presence.Lookup(p.id)
	if !ok || e.Epoch != p.epoch {
		return
	}
	if err := s.cfg.Store.AckEpoch(ctx, p.id, e.Generation, p.epoch); err != nil {
		s.cfg.Log.Warn("an epoch's acknowledgement was not written", "agent", string(p.id), "error", err)
	}
}

// hear takes new facts and sees to it that they're written.
func (s *Server) hear(p *peer, facts protocol.Facts, caps []protocol.Capability) {
	p.facts.mu.Lock()
	defer p.facts.mu.Unlock()
	f := &protocol.FactsUpdate{Facts: cleanFacts(facts), Capabilities: caps}
	s.skewed(p, time.Duration(f.Facts.ClockAheadMS)*time.Millisecond)
	if !p.facts.heard(f) {
		return
	}
	p.facts.latest = f
	if !p.facts.writing {
		p.facts.writing = true
		s.beside(p, func() { s.writeFacts(p) })
	}
}

// skewed says once for each connection that an agent's clock differs. Nothing goes by it:
// times in the record are the server's, deadlines are time remaining.
func (s *Server) skewed(p *peer, ahead time.Duration) {
	if p.facts.clockTold || ahead.Abs() <= clockSkew {
		return
	}
	p.facts.clockTold = true
	now := time.Now().UTC()
	if !s.quiet.Allow("clock differs", string(p.id), now) {
		return
	}
	s.cfg.Log.Warn("an agent's clock differs from the server's: times in its own logs won't match the record's",
		"agent", string(p.id), "ahead", ahead.String(), "agent_time", now.Add(ahead), "server_time", now)
}

// writeFacts writes until nothing newer came.
func (s *Server) writeFacts(p *peer) {
	for {
		f, wait := p.facts.next()
		if f == nil || !pause(p, wait) {
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, storeTimeout)
		err := s.cfg.Store.UpdateFacts(ctx, p.id, p.epoch, f.Facts, f.Capabilities)
		cancel()
		if err != nil {
			s.cfg.Log.Warn("an agent's facts were not written", "agent", string(p.id), "error", err)
		}
	}
}

// next takes out what is to be written and tells how long to wait before; nil ends the writing.
func (b *factsBox) next() (f *protocol.FactsUpdate, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, b.latest = b.latest, nil
	if f == nil {
		b.writing = false
		return nil, 0
	}
	return f, b.spend(time.Now())
}

// spend takes one write from the allowance and tells how long to wait for it.
func (b *factsBox) spend(now time.Time) time.Duration {
	if b.due.Before(now) {
		b.due = now
	}
	wait := b.due.Sub(now) - (factsBurst-1)*factsEvery
	b.due = b.due.Add(factsEvery)
	return max(0, wait)
}

// pause waits; false when the session has ended.
func pause(p *peer, d time.Duration) bool {
	if d == 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.session.Done():
		return false
	}
}

func (s *Server) agentLog(p *peer, f *protocol.Log) {
	if !s.quiet.AllowMost("agent's log", string(p.id), agentLines, time.Now()) {
		return
	}
	level := slog.LevelInfo
	switch f.Level {
	case "debug":
		level = slog.LevelDebug
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelWarn // an agent's error is a warning here
	}
	s.cfg.Log.Log(s.ctx, level, "agent's log", "agent", string(p.id), "message", text.Line(f.Message, protocol.MaxLog))
}
