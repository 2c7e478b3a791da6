//go:build unix

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	sims := r.simulate(simulated, l.simulate)
	harness.Eventually(t, time.Minute, "all simulated agents", func() bool { return sims.Online() == simulated })
	return l
}

// trouble is what a storm does to a replica.
type trouble int

const (
	killed trouble = iota
	stopped
	restarted
	troubles // how many there are
)

func (w trouble) String() string { return [troubles]string{"killed", "stopped", "restarted"}[w] }

// stoppedFor is longer than it takes until the others count a replica as dead.
const stoppedFor = 20 * time.Second

// storm brings trouble to one replica after the other while that many clients call, and then
// holds the promises against what happened.
func (l *load) storm(clients int, next func(round int) (replica int, what trouble, ok bool)) {
	ctx, stop := context.WithCancel(context.Background())
	loaded := make(chan struct{})
	go func() { defer close(loaded); l.run(ctx, clients) }()
	defer func() { stop(); <-loaded }()

	pause := func(d time.Duration) {
		until := time.NewTimer(d)
		defer until.Stop()
		<-until.C
	}
	began := time.Now()
	pause(5 * time.Second)
	for round := 0; ; round++ {
		i, what, ok := next(round)
		if !ok {
			break
		}
		switch p := l.r.replicas[i].Server; what {
		case killed:
			p.Kill()
			pause(3 * time.Second)
			l.r.again(i)
		case stopped:
			p.Freeze()
			pause(stoppedFor)
			p.Thaw()
		default:
			p.Stop()
			l.r.again(i)
		}
		l.t.Logf("after %s one was %s", time.Since(began).Round(time.Second), what)
		pause(5 * time.Second)
	}
	stop()
	<-loaded
	l.t.Logf("after %s all was answered", time.Since(began).Round(time.Second))
	l.recovered(time.Minute)
	l.verify("offline", "unavailable", "not_started", "outcome_unknown", "http 502", "http 503", "http 504", "gone")
	if l.progress.Load() == 0 || l.files.Load() == 0 {
		l.t.Error("no progress came, or no file went: this proves less than it should")
	}
}

// TestOneReplicaAtATime: of three replicas one is killed, one stopped for 20 s and one
// restarted, while clients call 300 simulated agents and two real ones. No call runs on
// another host than named, or twice; each has one outcome, which is what its client was told;
// what was refused didn't run; nothing is missing from the record; and all agents can be
// called soon after.
func TestOneReplicaAtATime(t *testing.T) {
	newLoad(t, newRig(t, 3), 300).storm(10, func(round int) (int, trouble, bool) {
		return round, trouble(round), round < int(troubles)
	})
}
