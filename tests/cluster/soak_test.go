//go:build soak && unix

package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// stormFor is how long the storm goes on; many is how many agents two replicas have.
const (
	stormFor = 10 * time.Minute
	many     = 14000
)

// TestStorm is TestOneReplicaAtATime for long, and with more clients.
func TestStorm(t *testing.T) {
	l := newLoad(t, newRig(t, 3), 300)
	began := time.Now()
	l.storm(24, func(round int) (int, trouble, bool) {
		return (round + round/3) % len(l.r.replicas), trouble(round % int(troubles)), time.Since(began) < stormFor
	})
}

// taken is longer than it takes until the agents have spread again.
const taken = 4 * time.Second

// TestRollingRestart: three replicas are restarted one after the other under a light load.
// Every client has an answer of Drover's, and the only errors are refusals that say to try again.
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
		harness.Eventually(t, time.Minute, "calls while the replica is back", func() bool {
			return len(l.succeeded()) >= before+40 && time.Since(ready) > taken
		})
	}
	stop()
	<-loaded
	l.recovered(time.Minute)
	l.verify("offline", "unavailable", "not_started")
}

// succeeded are the answers until now that are results.
func (l *load) succeeded() (out []answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.answers {
		if a.state == "succeeded" {
			out = append(out, a)
		}
	}
	return out
}
