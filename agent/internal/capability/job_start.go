package capability

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
)

// jobStart starts a background job. Its id is the call's, so that one call makes one job.
func (h *Host) jobStart(ctx context.Context, c *run.Call, in capability.JobStartIn) (capability.JobStartOut, error) {
	none := capability.JobStartOut{}
	cmd, err := h.wanted(c, "job_start", wish{in.Command, in.Argv, in.Cwd, in.Env})
	if err == nil {
		err = h.checkDir(cmd)
	}
	if err != nil {
		return none, err
	}
	job, err := h.Jobs.Start(ctx, jobs.Order{
		ID: c.ID, Name: text.Line(in.Name, 100), Command: shownCommand(in), Caller: c.Caller,
		Program: jobs.Program{Path: cmd.path, Argv: cmd.argv, Line: cmd.line, Dir: cmd.dir, Env: cmd.env, Stdin: in.Stdin},
		Timeout: time.Duration(cmp.Or(in.TimeoutSeconds, capability.DefaultJobTimeout)) * time.Second,
		Quota:   cmp.Or(in.MaxOutput, capability.DefaultJobOutput),
	})
	var refused *jobs.NotStarted
	var pe *protocol.Error
	switch {
	case err == nil:
		return startedJob(job), nil
	case errors.As(err, &pe):
		return none, pe
	case errors.As(err, &refused):
		return none, h.notStarted(err, cmd)
	case !errors.Is(err, jobs.ErrAbandoned):
		h.Log.Error("a job can't be started", "call", c.ID, "err", err)
		return none, h.sysError(err, "a folder for the job", "can't be made in the agent's state folder; nothing was started")
	case job.State == jobs.Running || len(job.Left) > 0:
		return none, &protocol.Error{Code: protocol.CodeOutcomeUnknown, Reason: jobs.ReasonStillRunning,
			Message: "the job's start was given up, but it could not be seen to end and may go on; job_list shows it"}
	case ctx.Err() != nil:
		return none, run.Ended(ctx, "the job was ended, if it had started")
	}
	return none, protocol.Failf(protocol.ReasonIO, "the job's supervisor went down at its start; what it had started was killed. The agent's log says more")
}

func startedJob(job jobs.Job) capability.JobStartOut {
	return capability.JobStartOut{JobID: job.ID, State: string(job.State), PID: job.PID, StartedAt: stamp(job.StartedAt)}
}

// jobStarted is the result of a call whose agent ended before it could answer, if its job is
// known to have started.
func (h *Host) jobStarted(callID string) (capability.JobStartOut, bool) {
	job, nothing, err := h.Jobs.Trace(func(id string) bool { return id == callID })
	return startedJob(job), err == nil && !nothing && job.PID != 0
}

// shownCommand is a job's command for lists.
func shownCommand(in capability.JobStartIn) string {
	if in.Command != "" {
		return text.Line(in.Command, 200)
	}
	return text.Line(strings.Join(in.Argv, " "), 200)
}
