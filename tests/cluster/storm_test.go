//go:build soak && unix

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/bench/swarm"
	"github.com/drover-fleet/drover/tests/harness"
)

// newLoad adds two real agents and some simulated ones, which all come through the balancer.
// They end with the test.
func newLoad(t *testing.T, r *rig, simulated int) *load {
	t.Helper()
	dir := t.TempDir()
	l := &load{t: t, r: r, effects: &effects{file: filepath.Join(dir, "effects")}, pace: 400 * time.Millisecond, dir: dir}
	if err := os.WriteFile(l.effects.file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"web-01", "web-02"} {
		r.replicas[0].HostAt(id, r.URL, nil)
		l.agents = append(l.agents, id)
	}
	l.real = len(l.agents)
	for i := range simulated {
		l.agents = append(l.agents, fmt.Sprintf("sim-%05d", i))
	}
	sims, err := swarm.Enrol(t.Context(), swarm.Config{URL: r.URL, Token: r.Admin, Agents: simulated, Host: l.simulate})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { sims.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	harness.Eventually(t, time.Minute, "all simulated agents", func() bool { return sims.Online() == simulated })
	return l
}

// TestStorm: three replicas, of which one at a time is killed, stopped for 20 s, or
// restarted, while clients call. No call runs on another host than named, or twice; each has
// one outcome, which is what its client was told; nothing is missing from the record; and
// all agents can be called soon after.
func TestStorm(t *testing.T) {
	r := newRig(t, 3)
	l := newLoad(t, r, 300)
	ctx, stop := context.WithCancel(context.Background())
	loaded := make(chan struct{})
	go func() { defer close(loaded); l.run(ctx, 24) }()
	defer func() { stop(); <-loaded }()

	pause := func(d time.Duration) {
		until := time.NewTimer(d)
		defer until.Stop()
		<-until.C
	}
	began := time.Now()
	for round := 0; time.Since(began) < stormFor; round++ {
		pause(4 * time.Second)
		i := (round + round/3) % len(r.replicas)
		switch p := r.replicas[i].Server; round % 3 {
		case 0:
			p.Kill()
			pause(3 * time.Second)
			r.again(i)
		case 1:
			p.Freeze()
			pause(20 * time.Second)
			p.Thaw()
		case 2:
			p.Stop()
			r.again(i)
		}
	}
	stop()
	<-loaded
	l.recovered(time.Minute)
	l.verify("offline", "unavailable", "not_started", "outcome_unknown", "http 502", "http 503", "http 504", "gone")
}

// failTimeout is for how long the document's nginx leaves out a replica that failed.
const failTimeout = 2 * time.Second

// TestRollingRestart: three replicas are restarted one after the other under a light load.
// Every client has an answer, and the only errors are refusals that say to try again.
func TestRollingRestart(t *testing.T) {
	r := newRig(t, 3)
	l := newLoad(t, r, 30)
	l.patient = true
	ctx, stop := context.WithCancel(context.Background())
	loaded := make(chan struct{})
	go func() { defer close(loaded); l.run(ctx, 6) }()
	defer func() { stop(); <-loaded }()
	for i := range r.replicas {
		before := len(l.succeeded())
		r.replicas[i].Server.Stop()
		r.again(i)
		ready := time.Now()
		harness.Eventually(t, time.Minute, "calls while nginx takes the replica in again", func() bool {
			return len(l.succeeded()) >= before+40 && time.Since(ready) > 2*failTimeout
		})
	}
	stop()
	<-loaded
	l.recovered(time.Minute)
	l.verify("offline", "unavailable", "not_started")
}
