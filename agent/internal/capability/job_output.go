package capability

import (
	"cmp"
	"context"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// jobOutputEvery is how often a job is looked at while its news are waited for.
const jobOutputEvery = 100 * time.Millisecond

// jobOutput reads a page of a job's output, and waits for one if it's told to.
func (h *Host) jobOutput(ctx context.Context, c *run.Call, in capability.JobOutputIn) (capability.JobOutputOut, error) {
	wait := time.NewTimer(time.Duration(in.WaitSeconds) * time.Second)
	defer wait.Stop()
	tick := time.NewTicker(jobOutputEvery)
	defer tick.Stop()
	for last := in.WaitSeconds == 0; ; {
		out, err := h.jobPage(c, in)
		if err != nil || last || out.Text != "" || out.State != string(jobs.Running) {
			return out, err
		}
		select {
		case <-wait.C:
			last = true
		case <-tick.C:
		case <-ctx.Done():
			return capability.JobOutputOut{}, run.Ended(ctx, "only the waiting for output was ended; the job goes on")
		}
	}
}

// jobPage reads what there is.
func (h *Host) jobPage(c *run.Call, in capability.JobOutputIn) (capability.JobOutputOut, error) {
	none := capability.JobOutputOut{}
	stream := cmp.Or(in.Stream, jobs.Stdout)
	o, err := h.Jobs.Open(c.Caller, in.JobID, stream)
	if err != nil {
		return none, h.sysError(err, "the job's output", "can't be read")
	}
	defer o.Close()
	j, at := o.Job, in.Offset
	if at < 0 {
		at = max(0, o.Size+at)
	}
	if at > o.Size {
		return none, protocol.Errorf(protocol.CodeBadArgs, "offset lies beyond the job's %s, of which %d bytes are kept until now; use next_offset of the answer before", stream, o.Size)
	}
	ended := j.State != jobs.Running
	out := capability.JobOutputOut{JobID: j.ID, State: string(j.State), ExitCode: j.ExitCode, Signal: j.Signal, Detail: j.Detail, Stream: stream,
		Offset: at, NextOffset: at, StdoutBytes: j.Stdout.Total(), StderrBytes: j.Stderr.Total(), Dropped: j.Stdout.Dropped}
	if stream == jobs.Stderr {
		out.Dropped = j.Stderr.Dropped
	}
	if o.File != nil {
		p, err := pageOf(o.File, at, o.Size, cmp.Or(in.Limit, capability.DefaultOutput), ended)
		if err != nil {
			return none, h.sysError(err, "the job's output", "can't be read")
		}
		out.Text, out.Offset, out.NextOffset, out.Invalid = p.text, p.from, p.to, p.invalid
	}
	out.EOF = ended && out.NextOffset >= o.Size
	return out, nil
}
