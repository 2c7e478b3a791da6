//go:build linux

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestX13_AnAgentThatIsKilledWhileAJobStarts: at whatever moment, its caller hears the truth:
// the job started, and runs, or nothing of it ran, and it may be started again.
func TestX13_AnAgentThatIsKilledWhileAJobStarts(t *testing.T) {
	h := newJobHost(t)
	started, not := 0, 0
	for n := range 14 {
		ran := filepath.Join(t.TempDir(), "ran")
		jobs := filepath.Join(h.state, "jobs")
		before := map[string]bool{}
		old, _ := os.ReadDir(jobs)
		for _, e := range old {
			before[e.Name()] = true
		}
		var res harness.CallResult
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			h.d.REST(h.d.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": h.id, "tool": "job_start", "wait_seconds": 50, "args": map[string]any{
				"command": "echo > " + ran + "; echo up; exec sleep 600", "env": map[string]string{"TEST_STATE": h.state}}}, &res)
		}()
		// The moments lie around those of the start, counted from the job's folder on.
		harness.Eventually(t, patience, "the job's folder is made", func() bool {
			now, _ := os.ReadDir(jobs)
			return slices.ContainsFunc(now, func(e os.DirEntry) bool { return !before[e.Name()] })
		})
		after := time.NewTimer(time.Duration(n*n) * 300 * time.Microsecond)
		<-after.C
		h.agent.Kill()
		h.d.WaitState(h.id, "offline")
		h.start("")
		<-answered
		switch res.State {
		case "succeeded":
			started++
			var j shownJob
			if err := json.Unmarshal(res.Result, &j); err != nil || j.JobID != res.CallID || j.PID == 0 {
				t.Errorf("%d: %s, %v", n, res.Result, err)
				continue
			}
			if p := h.output(h.d.Admin, j.JobID, 0); p.State != "running" || gone(j.PID) {
				t.Errorf("%d: it was started, and is %+v", n, p)
			}
			var stopped shownJob
			h.do(h.d.Admin, "job_stop", map[string]any{"job_id": j.JobID, "signal": "KILL"}, &stopped)
		case "not_started":
			not++
			if _, err := os.Stat(ran); err == nil || len(h.ofJobs(res.CallID)) > 0 {
				t.Errorf("%d: nothing was started, and it ran", n)
			}
		default:
			t.Errorf("%d: %s %+v", n, res.State, res.Error)
		}
	}
	t.Logf("%d were started, %d not", started, not)
	var list struct {
		Jobs []shownJob `json:"jobs"`
	}
	h.do(h.d.Admin, "job_list", map[string]any{}, &list)
	for _, j := range list.Jobs {
		if j.State == "running" || j.State == "lost" {
			t.Errorf("at the end: %+v", j)
		}
	}
}
