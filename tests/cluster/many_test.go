//go:build soak && linux

package cluster

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAReplicaOfManyIsKilled: two replicas have many idle agents, half of them each; one is
// killed, and all agents are on the other within two minutes.
func TestAReplicaOfManyIsKilled(t *testing.T) {
	r := newRigOf(t, 2, 4) // each agent takes two of a worker's files
	start := time.Now()
	t.Logf("empty: %s and %s", memory(t, r.replicas[0]), memory(t, r.replicas[1]))
	sims := r.simulate(many, nil)
	t.Logf("%d agents are enrolled after %s", many, time.Since(start).Round(time.Second))
	harness.Eventually(t, 3*time.Minute, "all agents", func() bool { return sims.Online() == many })
	last := r.replicas[1]
	held := onlineOn(t, last)
	if held < many/3 || held > many*2/3 {
		t.Errorf("one replica has %d of %d agents: the balancer doesn't balance", held, many)
	}
	t.Logf("with %d and %d agents: %s and %s", many-held, held, memory(t, r.replicas[0]), memory(t, last))

	_ = sims.Dials() // those of the start
	began := time.Now()
	r.replicas[0].Server.Kill()
	harness.Eventually(t, 2*time.Minute, "all agents on the other replica", func() bool { return onlineOn(t, last) == many })
	t.Logf("all %d are on the other after %s: %s", many, time.Since(began).Round(100*time.Millisecond), memory(t, last))
	t.Log(shape(began, sims.Dials()))
	for _, id := range []string{"sim-00000", fmt.Sprintf("sim-%05d", many/2), fmt.Sprintf("sim-%05d", many-1)} {
		if _, res := last.REST(last.Admin).Call(id, "fs_stat", map[string]any{"path": "/"}); res.State != "succeeded" {
			t.Errorf("%s: %s %+v", id, res.State, res.Error)
		}
	}
}

// shape tells when agents dialled: all of them, the busiest second, and the second of the
// middle one and of the last.
func shape(began time.Time, dials []time.Time) string {
	slices.SortFunc(dials, time.Time.Compare)
	second := func(at time.Time) int { return int(at.Sub(began) / time.Second) }
	each := map[int]int{}
	for _, at := range dials {
		each[second(at)]++
	}
	return fmt.Sprintf("%d dials, at most %d in one second; half of them within %d s, the last after %d s", len(dials), slices.Max(slices.Collect(maps.Values(each))),
		second(dials[len(dials)/2])+1, second(dials[len(dials)-1]))
}

// memory is what a replica's process has resident.
func memory(t *testing.T, d *harness.Deployment) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", d.Server.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d MiB", resident*os.Getpagesize()>>20)
}
