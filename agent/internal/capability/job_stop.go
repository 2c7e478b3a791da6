package capability

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// How long jobs have to end when the caller doesn't say, and when their right is gone.
const (
	stopGrace   = 5 * time.Second
	revokeGrace = 2 * time.Second
)

// stopLinger is how long a call that ends first waits on for the jobs that it has told to end:
// that can't be taken back. Whatever it answers must be true, and in time.
const stopLinger = 10 * time.Second

// lingering ends that much later than ctx.
func lingering(ctx context.Context) (on context.Context, done func()) {
	on, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(stopLinger, end)
		context.AfterFunc(on, func() { late.Stop() })
	})
	return on, func() { stop(); end() }
}

// jobStop ends a job, or for the server itself all of a principal's.
func (h *Host) jobStop(ctx context.Context, c *run.Call, in capability.JobStopIn) (capability.JobStopOut, error) {
	none := capability.JobStopOut{}
	stop := jobs.Stop{Signal: cmp.Or(in.Signal, "TERM"), Grace: stopGrace, Reason: "stopped by " + callerName(c.Caller) + " with job_stop"}
	if in.GraceSeconds != nil {
		stop.Grace = time.Duration(*in.GraceSeconds) * time.Second
	}
	if in.Principal != "" {
		return h.stopPrincipal(ctx, c, in, stop)
	}
	if in.JobID == "" {
		return none, protocol.Errorf(protocol.CodeBadArgs, `job_stop needs the argument "job_id"`)
	}
	if ctx.Err() != nil {
		return none, run.Ended(ctx, "nothing was done to the job")
	}
	on, done := lingering(ctx)
	defer done()
	j, already, err := h.Jobs.Stop(on, c.Caller, in.JobID, stop)
	if err != nil {
		return none, h.sysError(err, "the job", "can't be stopped")
	}
	out := capability.JobStopOut{JobID: j.ID, State: string(j.State), ExitCode: j.ExitCode, Signal: j.Signal, Detail: j.Detail, Already: already, Left: j.Left}
	if already {
		return out, nil
	}
	if len(j.Left) > 0 {
		return out, leftBehind(j.Left)
	}
	out.Stopped = 1
	return out, nil
}

// stopPrincipal ends the jobs of a principal whose right was revoked.
func (h *Host) stopPrincipal(ctx context.Context, c *run.Call, in capability.JobStopIn, stop jobs.Stop) (out capability.JobStopOut, err error) {
	if c.Caller.Kind != "system" {
		return out, protocol.Errorf(protocol.CodeBadArgs, `the argument "principal" of job_stop is for the server's own use; give job_id`)
	}
	if in.JobID != "" {
		return out, protocol.Errorf(protocol.CodeBadArgs, "job_stop needs either job_id or principal, and not both")
	}
	stop.Reason = "its right was revoked"
	if in.GraceSeconds == nil {
		stop.Grace = revokeGrace
	}
	if ctx.Err() != nil {
		return out, run.Ended(ctx, "nothing was done to the jobs")
	}
	on, done := lingering(ctx)
	defer done()
	var left []jobs.Job
	if out.Stopped, left = h.Jobs.StopPrincipal(on, in.Principal, stop); len(left) == 0 {
		return out, nil
	}
	for _, j := range left {
		if out.Left = append(out.Left, j.Left...); len(j.Left) == 0 {
			out.Left = append(out.Left, j.PID)
		}
	}
	return out, leftBehind(out.Left)
}

func leftBehind(pids []int) error {
	return &protocol.Error{Code: protocol.CodeOutcomeUnknown, Reason: "left_behind",
		Message: fmt.Sprintf("these processes could not be seen to end and may go on: %v. Look on the host (ps -fp)", pids)}
}
