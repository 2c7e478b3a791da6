package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
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
