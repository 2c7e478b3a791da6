//go:build unix

package cluster

import (
	"bytes"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// back is how soon after a replica's end all its agents are on the others.
const back = 10 * time.Second

// TestAgentsFindTheirWay: three replicas are restarted one after the other behind the
// document's nginx while agents alone come through it, whose requests don't end. Each is away
// until all agents are on the others, which is soon: nginx doesn't leave out replicas that
// have come back. Whoever else asks something while one is away isn't refused for that, and a
// call is made once.
func TestAgentsFindTheirWay(t *testing.T) {
	const agents = 30
	r := newRig(t, 3)
	sims := r.simulate(agents, nil)
	harness.Eventually(t, 30*time.Second, "all agents", func() bool { return sims.Online() == agents })

	elsewhere := func(away int) (n int) {
		for i, d := range r.replicas {
			if i != away {
				n += onlineOn(t, d)
			}
		}
		return n
	}
	for i, d := range r.replicas {
		d.Server.Stop()
		ended := time.Now()
		harness.Eventually(t, 2*time.Minute, "all agents on the others", func() bool { return elsewhere(i) == agents })
		took := time.Since(ended).Round(100 * time.Millisecond)
		t.Logf("replica %d: all agents are on the others %s after its end", i, took)
		if took > back {
			t.Errorf("replica %d: all agents are on the others only %s after its end", i, took)
		}
		if i == len(r.replicas)-1 {
			r.calls(t, 20)
		}
		r.again(i)
	}
	log, err := os.ReadFile(r.errors)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(log, []byte("no live upstreams")); n > 0 {
		t.Errorf("nginx answered 502 %d times without asking any replica", n)
	}
	if n := bytes.Count(log, []byte("Connection refused")); n < 6 || !bytes.Contains(log, []byte("POST /api/v1/calls")) {
		t.Errorf("nginx asked a replica that was away %d times, and for calls too: %t; this proves little", n, bytes.Contains(log, []byte("POST /api/v1/calls")))
	}
}

// calls makes so many, the first in the record, each of which succeeds at once.
func (r *rig) calls(t *testing.T, n int) {
	t.Helper()
	for range n {
		began := time.Now()
		status, res := r.REST(r.Admin).Call("sim-00000", "fs_stat", map[string]any{"path": "/"})
		if status != http.StatusOK || res.State != "succeeded" {
			t.Errorf("a call while a replica is away: HTTP %d %+v", status, res)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a call while a replica is away took %s", took)
		}
	}
	made := 0
	for _, row := range r.AllRecords() {
		if row.Kind == "intent" {
			made++
		}
	}
	if made != n {
		t.Errorf("%d calls are in the record as %d", n, made)
	}
}
