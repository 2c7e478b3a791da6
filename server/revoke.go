package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/store"
)

const (
	// jobsReach is how far back jobs of a revoked credential are looked for: none runs longer.
	jobsReach = 7 * 24 * time.Hour
	// stopTries bounds how often one agent is told to stop one principal's jobs.
	stopTries = 8
)

// jobStopper ends the background jobs of credentials that no longer count. A job outlives its
// call, so that ending the calls isn't enough. It's a call like any other: on record, queued
// for an agent that is away, and made once, by its key, however often the server starts.
type jobStopper struct {
	mu    sync.Mutex
	tries map[store.JobOwner]int // stopTries: done with
}

// stopJobs tells the agents on which revoked or expired credentials have started jobs.
func (s *Server) stopJobs(ctx context.Context, snap *store.Snapshot) {
	owners, err := s.db.JobOwners(ctx, time.Now().Add(-jobsReach))
	if err != nil {
		s.log.Warn("jobs of revoked credentials could not be looked for", "err", err)
		return
	}
	for _, o := range owners {
		if snap.Agents[o.Agent] == nil || s.authn.Alive(o.Principal) {
			continue
		}
		if try, ok := s.jobs.begin(o); ok {
			s.stopJobsOf(ctx, o, try)
		}
	}
}

func (j *jobStopper) begin(o store.JobOwner) (try int, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.tries == nil {
		j.tries = map[store.JobOwner]int{}
	}
	try = j.tries[o]
	j.tries[o] = min(try+1, stopTries)
	return try, try < stopTries
}

func (j *jobStopper) done(o store.JobOwner) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tries[o] = stopTries
}

func (s *Server) stopJobsOf(ctx context.Context, o store.JobOwner, try int) {
	args, err := json.Marshal(map[string]string{"principal": o.Principal})
	if err != nil {
		return // it's two strings
	}
	who := authn.System("revocation")
	who.Grant = fleet.Grant{Agents: fleet.AgentSet{IDs: []fleet.AgentID{o.Agent}}, Tools: fleet.ToolSet{Names: []string{"job_stop"}}}
	agent, _ := jsontext.AppendQuote(nil, string(o.Agent)) // an agent id is plain ASCII
	res, err := s.dispatch.Call(ctx, who, dispatch.Request{
		Tool: "job_stop", Agent: agent, Args: args, Wait: 5 * time.Second, Edge: "system", QueueFor: dispatch.MaxQueue,
		Key: fmt.Sprintf("revoked:%s:%s:%d", o.Principal, o.Agent, try),
	})
	switch {
	case err != nil && fleet.AsError(err).Code == protocol.CodeUnsupported:
		s.jobs.done(o) // its agent has no jobs any more
	case err != nil:
		s.log.Warn("the jobs of a revoked credential could not be stopped; tried again soon", "agent", o.Agent, "principal", o.Principal, "err", err)
	case !res.State.Final(), res.State == fleet.Succeeded:
		s.log.Info("the jobs of a revoked credential are stopped", "agent", o.Agent, "principal", o.Principal, "state", res.State)
		s.jobs.done(o)
	}
}

const (
	// retireTime is how long a retired agent's calls have to be ended on its host before its
	// tunnel is closed: with the tunnel goes the way to tell that they're dead.
	retireTime = protocol.CancelGrace + 2*time.Second
	// heedTime is how long the other replicas have to cancel theirs. They see the policy move
	// within a second; one that stands still must not keep a command running.
	heedTime = 3 * time.Second
	// retireLook is how often it's looked whether all have ended.
	retireLook = 20 * time.Millisecond
)

// retire cancels the calls of an agent that the policy no longer has, and closes its tunnel once
// they have ended, those of other replicas over it, too. No new call reaches it meanwhile but
// from a replica that hasn't seen the policy move: it ends like the others.
func (s *Server) retire(e presence.Entry, code int, reason string) {
	if _, already := s.retiring.LoadOrStore(e.Session, true); already {
		return
	}
	go func() {
		defer s.retiring.Delete(e.Session)
		defer fault.Catch(func(p *fault.Panic) {
			s.metrics.Caught(s.log, obs.InTunnel, p, "agent", string(e.Agent))
			e.Session.Close(code, reason) // what was to end ends with it
		})
		s.dispatch.Enforce()
		s.untilEnded(e)
		e.Session.Close(code, reason)
	}()
}

// untilEnded waits until no call is under way on a retired agent's tunnel, or its time is over.
func (s *Server) untilEnded(e presence.Entry) {
	late := time.NewTimer(retireTime)
	defer late.Stop()
	heed := time.NewTimer(heedTime)
	defer heed.Stop()
	look := time.NewTicker(retireLook)
	defer look.Stop()
	heard := false
	for e.Session.Alive() && (e.Calls() > 0 || !s.dispatch.Ended(e.Agent)) {
		if heard && e.Going() > 0 {
			return
		}
		select {
		case <-look.C:
		case <-heed.C:
			heard = true
		case <-late.C:
			return
		}
	}
}
