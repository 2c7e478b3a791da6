//go:build linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestACopyThatIsRefusedHasEndedNothing: a copy of a state folder, started beside its agent on
// the same host, is refused, and until then has touched neither a job nor a call of the first.
func TestACopyThatIsRefusedHasEndedNothing(t *testing.T) {
	h := newJobHost(t)
	one, two := newHeld(t), newHeld(t)
	call := one.args()
	var asked harness.CallResult
	h.d.REST(h.d.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": h.id, "tool": "shell_exec", "args": call, "wait_seconds": 1}, &asked)
	one.begun(t)
	j := h.job(h.d.Admin, two.args()["command"].(string))
	two.begun(t)

	beside := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-a", h.state, beside).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	second := hostOn(t, h.d, beside, "")
	harness.Eventually(t, patience, "the copy is refused", func() bool {
		return strings.Contains(string(second.Log()), "the server refuses this agent")
	})
	second.Stop()
	one.release(t)
	two.release(t)
	if res := await(t, &h.d.Client, asked.CallID); res.State != "failed" && res.State != "succeeded" || !strings.Contains(string(res.Result), `"exit_code":7`) {
		t.Errorf("the call: %s %s %+v", res.State, res.Result, res.Error)
	}
	var got shownJob
	harness.Eventually(t, patience, "the job has ended", func() bool {
		got = h.output(h.d.Admin, j.JobID, 0)
		return got.State != "running"
	})
	if got.State != "failed" || got.ExitCode == nil || *got.ExitCode != 7 || got.Text != "begun\nended\n" {
		t.Errorf("the job: %+v", got)
	}
}
