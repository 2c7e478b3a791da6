package fault_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/bench/swarm"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestSwarmComesBack: a server with 500 simulated agents is restarted, and killed. All come
// back in 90 s, never many at one moment, and other requests don't feel it.
func TestSwarmComesBack(t *testing.T) { swarmComesBack(t, 500) }

func swarmComesBack(t *testing.T, agents int) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite})
	s, err := swarm.Enrol(t.Context(), swarm.Config{URL: d.URL, Token: d.Admin, Agents: agents})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { s.Run(ctx) })
	defer run.Wait()
	defer stop()
	all := func() bool { return s.Online() == agents }
	harness.Eventually(t, 5*time.Minute, "all are connected", all)
	addr := strings.TrimPrefix(d.URL, "http://")
	for _, how := range []struct {
		name string
		end  func()
	}{{"restarted", d.Server.Stop}, {"killed", func() { d.Server.Kill() }}} {
		// Where a real fleet has settled, this one has too.
		harness.Eventually(t, time.Minute, "all are connected", all)
		settle(t)
		s.Dials()
		how.end()
		d.Serve(addr)
		began := time.Now()
		ready := time.Now()
		probe := newProbe(d)
		harness.Eventually(t, 90*time.Second, "all are back after the server was "+how.name, all)
		took := time.Since(began)
		worst, failed := probe.end()
		peak, mean := crowd(s.Dials(), ready)
		t.Logf("%s: %d agents back in %s; dials in the busiest second %d, on average %.1f; the slowest of other requests took %s", how.name, agents, took.Round(time.Millisecond), peak, mean, worst.Round(time.Millisecond))
		if failed > 0 {
			t.Errorf("%d other requests failed meanwhile", failed)
		}
		if float64(peak) > 3*mean {
			t.Errorf("%s: %d dials in one second, %.1f on average", how.name, peak, mean)
		}
	}
}

// settle waits until connections count as settled.
func settle(t *testing.T) {
	t.Helper()
	began := time.Now()
	harness.Eventually(t, time.Minute, "the connections have settled", func() bool { return time.Since(began) > 11*time.Second })
}

// crowd counts dials by the second: the most in one, and the mean over those from the first
// to the last tenth... of the agents' coming back.
func crowd(dials []time.Time, from time.Time) (peak int, mean float64) {
	by := map[int]int{}
	n, last := 0, 0
	for _, at := range dials {
		if s := int(at.Sub(from) / time.Second); at.After(from) {
			by[s]++
			n++
			last = max(last, s)
		}
	}
	for _, k := range by {
		peak = max(peak, k)
	}
	return peak, float64(n) / float64(last+1)
}

// probe asks the server for something small again and again.
type probe struct {
	stop chan struct{}
	done sync.WaitGroup
	took []time.Duration
	bad  int
}

func newProbe(d *harness.Deployment) *probe {
	p := &probe{stop: make(chan struct{})}
	url := d.URL
	p.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
			began := time.Now()
			resp, err := http.Get(url + "/healthz")
			if err != nil || resp.StatusCode != http.StatusOK {
				p.bad++
			}
			if err == nil {
				_ = resp.Body.Close()
			}
			p.took = append(p.took, time.Since(began))
		}
	})
	return p
}

// end returns the time that 99 of 100 requests took at most, and how many failed.
func (p *probe) end() (worst time.Duration, failed int) {
	close(p.stop)
	p.done.Wait()
	slices.Sort(p.took)
	if len(p.took) > 0 {
		worst = p.took[len(p.took)*99/100]
	}
	return worst, p.bad
}
