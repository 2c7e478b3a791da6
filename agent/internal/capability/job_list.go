package capability

import (
	"cmp"
	"context"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol/capability"
)

// jobList lists the caller's jobs.
func (h *Host) jobList(_ context.Context, c *run.Call, in capability.JobListIn) (capability.JobListOut, error) {
	out := capability.JobListOut{Jobs: []capability.Job{}}
	limit := cmp.Or(in.Limit, 50)
	for _, j := range h.Jobs.List(c.Caller) {
		if in.State != "" && in.State != string(j.State) {
			continue
		}
		if out.Total++; out.Total <= limit {
			out.Jobs = append(out.Jobs, jobShown(j))
		}
	}
	return out, nil
}

func jobShown(j jobs.Job) capability.Job {
	ended := ""
	if !j.EndedAt.IsZero() {
		ended = stamp(j.EndedAt)
	}
	return capability.Job{JobID: j.ID, Name: j.Name, Command: j.Command, State: string(j.State), ExitCode: j.ExitCode, Signal: j.Signal,
		Detail: j.Detail, PID: j.PID, StartedAt: stamp(j.StartedAt), EndedAt: ended, StdoutBytes: j.Stdout.Total(),
		StderrBytes: j.Stderr.Total(), StartedBy: callerName(j.Caller), Left: j.Left}
}
