package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/server/internal/cluster"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/session"
	"github.com/drover-fleet/drover/server/internal/store"
)

// Times of the membership. A replica stops sending well before the others take its calls.
const (
	beatEvery  = 2 * time.Second
	fenceAfter = 8 * time.Second
	buryAfter  = 15 * time.Second
)

// wayTime is longer than a balancer may keep a connection that it doesn't use (docs/deploy.md).
const wayTime = 2 * time.Second

// giveWay lets a balancer turn to the other replicas while calls still go through here: it
// can't connect any more, and what comes over a connection that it kept is the last on that.
// It couldn't send a request again that met the end of such a connection, as nobody could say
// whether it was read.
func (s *Server) giveWay() {
	s.leaving.Store(true)
	_ = s.listener.Close()
	time.Sleep(wayTime)
}

// lastAnswers ends connections of a replica that gives way.
func (s *Server) lastAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// membership is this replica's standing among those that serve the database.
type membership struct {
	start time.Time
	beat  atomic.Int64 // when the last beat that was recorded began, in ns since start
	seen  map[string]sighting
}

// sighting is another replica's beat and since when, by this clock, it's been the same.
type sighting struct {
	beat  int64
	since time.Time
}

// joinOthers connects to the other replicas and lets calls go through them.
func (s *Server) joinOthers(c *dispatch.Config) error {
	bus, err := cluster.Connect(cluster.Config{
		Replica: s.db.Instance(), URL: s.cfg.NatsURL, ServerKey: s.key, Local: s.presence, Sessions: s.sessions, Trace: s.trace, Metrics: s.metrics, Log: s.log,
		Online:  func(id fleet.AgentID, generation int64) { s.dispatch.AgentElsewhere(id, generation) },
		Cancel:  func(id fleet.CallID) { s.dispatch.CancelHere(id) },
		Renew:   func(id fleet.AgentID, epoch int64) { s.tunnel.Renew(id, epoch) },
		Members: s.otherMembers,
	})
	if err != nil {
		return err
	}
	s.bus = bus
	s.member.start, s.member.seen = time.Now(), map[string]sighting{}
	c.Router, c.CancelElsewhere, c.OfflineWhy = bus, bus.CancelElsewhere, bus.Why
	s.measureCluster(bus)
	return nil
}

// otherMembers counts the other replicas that serve the database, or did until a moment ago.
func (s *Server) otherMembers(ctx context.Context) (int, error) {
	all, err := s.db.Replicas(ctx)
	return len(slices.DeleteFunc(all, func(r store.Replica) bool { return r.Instance == s.db.Instance() })), err
}

// sessionEnded tells the other replicas that somebody signed out of the page here.
func (s *Server) sessionEnded(e session.Session) {
	if s.bus != nil {
		s.bus.EndedSession(e)
	}
}

// presenceChanged tells the other replicas of an agent that came or went.
func (s *Server) presenceChanged(id fleet.AgentID) {
	if s.bus != nil {
		s.bus.Changed(id)
	}
}

// expected tells that an agent which isn't online may be in a moment.
func (s *Server) expected(id fleet.AgentID) bool {
	if s.tunnel.Expected(id) {
		return true
	}
	if s.bus != nil {
		return s.bus.CatchingUp() || s.bus.BrokeOff(id)
	}
	return s.presence.BrokeOff(id)
}

// agentOnline hears of an agent that is connected here and ready.
func (s *Server) agentOnline(id fleet.AgentID, generation int64) {
	s.presenceChanged(id)
	s.dispatch.AgentOnline(id, generation)
}

// fenced tells that this replica hasn't reached the database for so long that the others may
// take its calls. The clock goes on while the process is stopped.
func (m *membership) fenced() bool {
	return time.Since(m.start)-time.Duration(m.beat.Load()) > fenceAfter
}

// enterService makes this server one that serves the database, alone or with others, and
// takes over the calls that belong to nobody. leave ends it.
func (s *Server) enterService(ctx context.Context) (leave func(), err error) {
	if s.bus == nil {
		return func() {}, s.adopt(ctx)
	}
	if err := s.db.Enlist(ctx); err != nil {
		return nil, err
	}
	s.member.beat.Store(int64(time.Since(s.member.start)))
	if err := s.bus.Start(); err != nil {
		return nil, err
	}
	if err := s.adopt(ctx); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{}, 2)
	go func() { s.bus.Run(run); ended <- struct{}{} }()
	go func() { s.keepMembership(run); ended <- struct{}{} }()
	s.bus.CatchUp(ctx) // before anybody is answered
	return func() {
		stop()
		<-ended
		<-ended
		s.bus.Close()
		end, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := s.db.Resign(end); err != nil {
			s.log.Warn("the other replicas aren't told that this one stops; they'll notice", "err", err)
		}
	}, nil
}

func (s *Server) adopt(ctx context.Context) error {
	if err := s.db.SealQueued(ctx); err != nil {
		return err
	}
	n, err := s.dispatch.Adopt(ctx)
	if n > 0 {
		s.log.Info("open calls belonged to nobody; their agents are asked for them", "calls", n)
	}
	return err
}

// keepMembership beats, buries replicas that don't, and takes over what belongs to nobody.
func (s *Server) keepMembership(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.membershipRound(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("the membership of this replica could not be kept up", "err", err)
			clear(s.member.seen) // nobody could beat while the database was away
		}
	}
}

func (s *Server) membershipRound(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fenceAfter)
	defer cancel()
	began := time.Since(s.member.start)
	err := s.db.Beat(ctx)
	if errors.Is(err, store.ErrBuried) {
		old := s.db.Instance()
		if err = s.db.Rejoin(ctx); err == nil { // under the old name it would keep what it can't send
			s.log.Warn("the other replicas took this one for dead, since it stood still or didn't reach the database, and took over its open calls: their outcomes will be in the record. It goes on under a new name with new calls; nothing is to be done, unless it comes again: then look at this machine's load and its way to the database",
				"replica", old, "now", s.db.Instance())
			s.metrics.Named(s.db.Instance())
			s.dispatch.Renewed()
		}
	}
	if err != nil {
		return err
	}
	s.member.beat.Store(int64(began))
	if err := s.bury(ctx); err != nil {
		return err
	}
	if err := s.adopt(ctx); err != nil {
		return err
	}
	return s.dispatch.Heed(ctx)
}

// bury removes the replicas whose beat hasn't moved for long.
func (s *Server) bury(ctx context.Context) error {
	all, err := s.db.Replicas(ctx)
	if err != nil {
		return err
	}
	now, before := time.Now(), s.member.seen
	s.member.seen = map[string]sighting{}
	for _, r := range all {
		if r.Instance == s.db.Instance() {
			continue
		}
		was, known := before[r.Instance]
		if !known || was.beat != r.Beat {
			was = sighting{r.Beat, now}
		}
		s.member.seen[r.Instance] = was
		if now.Sub(was.since) < buryAfter {
			continue
		}
		dead, err := s.db.Bury(ctx, r)
		if err != nil {
			return err
		}
		if dead {
			s.log.Warn("a replica has stopped without a word; its calls are taken over", "replica", r.Instance)
		}
	}
	return nil
}
