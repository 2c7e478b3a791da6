//go:build linux || darwin

package capability_test

import (
	"context"
	"os"
	"testing"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

// TestACancelledJobStopTellsTheTruth: what it has told a job isn't taken back by a cancel, so its
// end is the job's, or that it isn't known.
func TestACancelledJobStopTellsTheTruth(t *testing.T) {
	r := newJobRig(t) // one: the ids of another's jobs would be the same
	for _, c := range []struct {
		name  string
		grace int
		code  protocol.Code
	}{
		{"it ends soon", 2, ""},
		{"it has long to end", 30, protocol.CodeOutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			told := t.TempDir() + "/told"
			ready := t.TempDir() + "/ready"
			j := startJob(t, r, args{"command": "trap 'echo > " + told + "' TERM; echo > " + ready + "; while :; do sleep 0.1; done"})
			there := func(path string) func() bool { return func() bool { _, err := os.Stat(path); return err == nil } }
			eventually(t, "the job has its trap", there(ready))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			go func() {
				eventually(t, "the job is told to end", there(told))
				cancel(&mux.CancelError{Reason: "cancelled by its caller"})
			}()
			out, fault := call[spec.JobStopOut](ctx, t, r, "job_stop", args{"job_id": j.JobID, "grace_seconds": c.grace})
			if c.code != "" {
				wantFault(t, fault, c.code, jobs.ReasonStillRunning)
				return
			}
			if fault != nil || out.State != "killed" || out.Stopped != 1 {
				t.Errorf("%+v, %+v", out, fault)
			}
		})
	}
	j := startJob(t, r, args{"command": "sleep 600"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&mux.CancelError{Reason: "cancelled by its caller"})
	_, fault := call[spec.JobStopOut](ctx, t, r, "job_stop", args{"job_id": j.JobID})
	wantFault(t, fault, protocol.CodeCancelled, "")
	if p := jobOutput(t, r, args{"job_id": j.JobID}); p.State != "running" {
		t.Errorf("one that was cancelled first: %+v", p)
	}
}
