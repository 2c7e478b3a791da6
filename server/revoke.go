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
	// stopWait is how long the end of such a call is waited for at once, and stopLook how long
	// it then takes until it's looked at anew. A call that failed is made again after stopPause,
	// one that couldn't be made after stopPause, then twice that, and so on up to stopLook.
	stopWait, stopLook, stopPause = 5 * time.Second, time.Minute, 5 * time.Second
)

// jobStopper ends the background jobs of credentials that no longer count. A job outlives its
// call, so that ending the calls isn't enough. It's a call like any other: on record, queued
// for an agent that is away, and made once, by its key, however often the server starts.
type jobStopper struct {
	mu   sync.Mutex
	seen map[store.JobOwner]bool // being seen to, or done with
	all  sync.WaitGroup
}

// stopJobs tells the agents on which revoked or expired credentials have started jobs. It
// waits for none of them: an agent may be away, and its neighbour's jobs are to end now.
func (s *Server) stopJobs(ctx context.Context, snap *store.Snapshot) {
	owners, err := s.db.JobOwners(ctx, time.Now().Add(-jobsReach))
	if err != nil {
		s.log.Warn("jobs of revoked credentials could not be looked for", "err", err)
		return
	}
	for _, o := range owners {
		if snap.Agents[o.Agent] != nil && !s.authn.Alive(o.Principal) && s.jobs.begin(o) {
			s.jobs.all.Go(func() { s.stopJobsOf(ctx, o) })
		}
	}
}

func (j *jobStopper) begin(o store.JobOwner) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.seen == nil {
		j.seen = map[store.JobOwner]bool{}
	}
	was := j.seen[o]
	j.seen[o] = true
	return !was
}

// again lets the jobs of an owner be looked for once more.
func (j *jobStopper) again(o store.JobOwner) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.seen, o)
}

// stopJobsOf makes the call until it has succeeded. One that ended otherwise in the time of an
// earlier process, or by a cancel, is followed by the next.
func (s *Server) stopJobsOf(ctx context.Context, o store.JobOwner) {
	log := s.log.With("agent", o.Agent, "principal", o.Principal)
	wait := stopPause
	for try := 0; try < stopTries && ctx.Err() == nil; {
		res, err := s.callJobStop(ctx, o, try)
		switch {
		case err != nil && fleet.AsError(err).Code == protocol.CodeUnsupported: // its agent has no jobs any more
			return
		case err != nil && fleet.AsError(err).Code == protocol.CodeUnknownAgent: // it was removed, which ends them
			s.jobs.again(o)
			return
		case ctx.Err() != nil:
			return
		case err != nil && fleet.AsError(err).Code == protocol.CodeConflict: // made under another server key, or rebuilt: how it ended doesn't tell
			try++
		case err != nil:
			log.Warn("the jobs of a revoked credential could not be stopped; tried again soon", "err", err)
			pause(ctx, wait)
			wait = min(2*wait, stopLook)
		case res.State == fleet.Succeeded:
			log.Info("the jobs of a revoked credential are stopped")
			return
		case !res.State.Final(): // it waits for its agent, and need not be made again unless somebody ends it
			log.Debug("the jobs of a revoked credential are stopped when their agent is told", "state", res.State)
			pause(ctx, stopLook)
		default:
			try++
			log.Warn("the jobs of a revoked credential may not all be stopped", "state", res.State, "call", res.CallID, "try", try)
			if !res.Joined {
				pause(ctx, stopPause)
			}
		}
	}
	if ctx.Err() == nil {
		log.Error("the jobs of a revoked credential could not be stopped; look on the host (job_list, job_stop)", "tries", stopTries)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *Server) callJobStop(ctx context.Context, o store.JobOwner, try int) (dispatch.Result, error) {
	args, err := json.Marshal(map[string]string{"principal": o.Principal})
	if err != nil {
		return dispatch.Result{}, err // it's two strings
	}
	who := authn.System("revocation")
	who.Grant = fleet.Only(o.Agent, "job_stop")
	agent, _ := jsontext.AppendQuote(nil, string(o.Agent)) // an agent id is plain ASCII
	return s.dispatch.Call(ctx, who, dispatch.Request{
		Tool: "job_stop", Agent: agent, Args: args, Wait: stopWait, Edge: "system", QueueFor: dispatch.MaxQueue,
		Key: fmt.Sprintf("revoked:%s:%s:%d", o.Principal, o.Agent, try),
	})
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
