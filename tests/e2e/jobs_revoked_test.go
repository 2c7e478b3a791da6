//go:build linux

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// rightEnds is how long what runs with a right may outlive it, or its agent's return
// (docs/guarantees.md, 4).
const rightEnds = 5 * time.Second

func (h *jobHost) revoke(id string) {
	h.t.Helper()
	if status, _ := h.d.REST(h.d.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status/100 != 2 {
		h.t.Fatalf("revoke: HTTP %d", status)
	}
}

// stops are the server's own calls that end a host's jobs, the latest first.
func (h *jobHost) stops() []harness.CallResult {
	h.t.Helper()
	var list struct{ Calls []harness.CallResult }
	if status := h.d.REST(h.d.Admin).JSON("GET", "/api/v1/calls?tool=job_stop", nil, &list); status != 200 {
		h.t.Fatalf("the calls: HTTP %d", status)
	}
	return list.Calls
}

// TestARevokedPATsJobsEndWhenTheirAgentIsBack: the order to end them outlives the server that
// gave it, the enforcement of rights in its next process, and a purge; it's given once, and
// the jobs are dead within five seconds of their agent's return.
func TestARevokedPATsJobsEndWhenTheirAgentIsBack(t *testing.T) {
	t.Parallel()
	h := newJobHost(t)
	pat, id := h.d.PAT("worker", "all", "all", false)
	doomed, other := h.job(pat, "trap '' TERM; sleep 600 & wait; sleep 600"), h.job(h.d.Admin, "sleep 600")
	h.agent.Kill()
	h.d.WaitState(h.id, "offline")
	h.revoke(id)
	queued := func() bool { s := h.stops(); return len(s) == 1 && s[0].State == "queued" }
	harness.Eventually(t, patience, "the order to end them is queued", queued)
	var out struct{ Cancelled int }
	if status := h.d.REST(h.d.Admin).JSON("POST", "/api/v1/agents/"+h.id+"/purge", nil, &out); status != 200 || out.Cancelled != 0 {
		t.Errorf("a purge: HTTP %d, %d taken back", status, out.Cancelled)
	}

	h.d.Server.Kill()
	h.d.Serve(strings.TrimPrefix(h.d.URL, "http://"))
	// A call that another revocation ends shows that rights were enforced since the start.
	witness, witnessID := h.d.PAT("witness", "all", "all", false)
	waits := queue(t, &h.d.Client, witness, h.id, filepath.Join(t.TempDir(), "effect"), 3600)
	h.revoke(witnessID)
	if res := await(t, &h.d.Client, waits.CallID); res.State != "cancelled" {
		t.Fatalf("the witness's call: %s %+v", res.State, res.Error)
	}
	if !queued() {
		t.Errorf("the order to end them is queued no more: %+v", h.stops())
	}

	h.start("")
	harness.Eventually(t, rightEnds, "the revoked PAT's job is dead", func() bool { return len(h.ofJobs(doomed.JobID)) == 0 })
	harness.Eventually(t, patience, "the order succeeds", func() bool { s := h.stops(); return len(s) == 1 && s[0].State == "succeeded" })
	if gone(other.PID) {
		t.Error("another's job died with it")
	}
}

// TestARevokedPATsJobsEndThoughOtherAgentsAreAway: who can't be told holds up nobody else.
func TestARevokedPATsJobsEndThoughOtherAgentsAreAway(t *testing.T) {
	t.Parallel()
	h := newJobHost(t)
	pat, id := h.d.PAT("worker", "all", "all", false)
	var away []*harness.Process
	for _, name := range []string{"a-1", "a-2", "a-3"} {
		host := hostOn(t, h.d, filepath.Join(t.TempDir(), "state"), h.d.Run("enroll", "create", "--agent-id", name))
		h.d.WaitState(name, "online")
		if _, res := h.d.REST(pat).Call(name, "job_start", map[string]any{"command": "true"}); res.State != "succeeded" {
			t.Fatalf("%s: %s %+v", name, res.State, res.Error)
		}
		away = append(away, host)
	}
	doomed := h.job(pat, "sleep 600")
	for _, host := range away {
		host.Kill()
	}
	h.revoke(id)
	harness.Eventually(t, rightEnds, "the revoked PAT's job is dead", func() bool { return len(h.ofJobs(doomed.JobID)) == 0 })
}
