package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/protocol"
)

// Stop says how a job is to be ended.
type Stop struct {
	Signal string // TERM, INT or KILL
	Grace  time.Duration
	Reason string // as the job shows it afterwards
}

// stopExtra is how long a supervisor has beyond the grace: it looks for orders now and then,
// kills what is left and waits for that.
const stopExtra = 12 * time.Second

// Stop ends one of the caller's jobs and returns it when it has ended, or an error when that
// couldn't be seen in time. already tells that it had ended before; then nothing was done.
func (m *Manager) Stop(ctx context.Context, c protocol.Caller, id string, s Stop) (job Job, already bool, err error) {
	job, err = m.Get(c, id)
	if err != nil || job.State != Running {
		return job, err == nil, err
	}
	if err := m.order(id, s); err != nil {
		return job, false, err
	}
	job, err = m.awaitEnd(ctx, c, id, s.Grace+stopExtra)
	if err == nil && job.State == Running {
		err = &protocol.Error{Code: protocol.CodeOutcomeUnknown, Reason: ReasonStillRunning,
			Message: fmt.Sprintf("the job (process %d) was told to end but hasn't yet; it may still. job_output shows its state", job.PID)}
	}
	// One that ended by itself before it was reached was not ended by this.
	return job, job.State == Done || job.State == Failed, err
}

// order tells a job's supervisor to end it.
func (m *Manager) order(id string, s Stop) error {
	m.mu.Lock()
	j := m.jobs[id]
	away := ""
	if j != nil && j.away != "" {
		away, j.told = j.away, s.Reason
	}
	m.mu.Unlock()
	switch {
	case j == nil:
		return nil // it ended long ago, just now
	case away != "": // it doesn't look into this folder
		m.opt.Processes.Tell(away)
		return nil
	}
	return writeFile(j.dir, stopFile, stopOrder{Signal: s.Signal, GraceMS: s.Grace.Milliseconds(), Reason: s.Reason})
}

// awaitEnd waits until a job has ended, at most limit.
func (m *Manager) awaitEnd(ctx context.Context, c protocol.Caller, id string, limit time.Duration) (Job, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		job, err := m.Get(c, id)
		if err != nil || job.State != Running || ctx.Err() != nil {
			return job, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// system is who ends jobs that nobody may have any more.
func system() protocol.Caller { return protocol.Caller{Principal: "system:agent", Kind: "system"} }

// StopAll ends every running job, but none that may be another agent's, because this state
// folder is a copy of that one's. It returns how many ended, and those of which that couldn't
// be seen until ctx ended, or that left something behind.
func (m *Manager) StopAll(ctx context.Context, s Stop) (ended int, left []Job) {
	return m.stopEach(ctx, s, func(j Job) bool { return !j.Away })
}

// StopPrincipal is StopAll for the jobs of one principal.
func (m *Manager) StopPrincipal(ctx context.Context, principal string, s Stop) (ended int, left []Job) {
	return m.stopEach(ctx, s, func(j Job) bool { return j.Caller.Principal == principal })
}

func (m *Manager) stopEach(ctx context.Context, s Stop, which func(Job) bool) (ended int, left []Job) {
	var told []string
	for _, job := range m.List(system()) {
		if job.State != Running || !which(job) {
			continue
		}
		if err := m.order(job.ID, s); err != nil {
			m.log.Error("a job can't be told to end", "job", job.ID, "err", err)
			left = append(left, job)
			continue
		}
		told = append(told, job.ID)
	}
	end := time.Now().Add(s.Grace + stopExtra)
	for _, id := range told {
		job, err := m.awaitEnd(ctx, system(), id, time.Until(end))
		switch {
		case err == nil && (job.State == Running || len(job.Left) > 0):
			left = append(left, job)
		default:
			ended++
		}
	}
	return ended, left
}
