package tunnel

import (
	"context"
	"log/slog"
	"sync"
	"time"

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
	logs    logGauge
}

// An agent's facts are written at once up to three times, then once in factsEvery.
const (
	factsEvery = 5 * time.Second
	factsBurst = 3
)

// onFrame hears what the session itself has no use for. It's called by the reader.
func (s *Server) onFrame(p *peer, f any) {
	switch f := f.(type) {
	case *protocol.FactsUpdate:
		if bad := badCapabilities(f.Capabilities); bad != "" {
			s.struck(p.id)
			p.session.Close(protocol.CloseViolation, bad)
			return
		}
		s.hear(p, f.Facts, f.Capabilities)
	case *protocol.Epoch:
		if f.Epoch == p.epoch {
			s.all.Go(func() { s.acknowledge(p) })
		}
	case *protocol.Log:
		s.agentLog(p, f)
	case *protocol.Resume:
		if f.Boot != "" && len(f.States) == 0 {
			s.ready(p)
		}
	case *protocol.Goodbye:
		s.cfg.Log.Info("agent says goodbye", "agent", string(p.id), "reason", text.Line(f.Reason, 256))
	}
}

// ready tells, once, that an agent's earlier calls can be asked for.
func (s *Server) ready(p *peer) {
	if p.ready.CompareAndSwap(false, true) && s.cfg.Online != nil {
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
	p.facts.latest = &protocol.FactsUpdate{Facts: cleanFacts(facts), Capabilities: caps}
	if !p.facts.writing {
		p.facts.writing = true
		s.all.Go(func() { s.writeFacts(p) })
	}
}

// writeFacts writes until nothing newer came.
func (s *Server) writeFacts(p *peer) {
	for {
		p.facts.mu.Lock()
		f := p.facts.latest
		p.facts.latest = nil
		if f == nil {
			p.facts.writing = false
			p.facts.mu.Unlock()
			return
		}
		wait := p.facts.spend(time.Now())
		p.facts.mu.Unlock()
		if !pause(p, wait) {
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

// logGauge lets a few lines a minute through.
type logGauge struct {
	since time.Time
	n     int
}

const logsPerMinute = 60

func (s *Server) agentLog(p *peer, f *protocol.Log) {
	g := &p.facts.logs // only the reader touches it
	if now := time.Now(); now.Sub(g.since) > time.Minute {
		*g = logGauge{since: now}
	}
	if g.n++; g.n > logsPerMinute {
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
