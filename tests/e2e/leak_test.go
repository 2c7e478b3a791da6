package e2e

import (
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestNothingLeaks: after a thousand rounds of connect, call and drop no goroutine is left,
// neither of the server nor of the agents, which share this process. Most rounds drop the
// connection by surprise (raw agents), some end in order and some in the middle of a call.
func TestNothingLeaks(t *testing.T) {
	const workers, rounds = 8, 125
	f := harness.New(t, harness.Options{Engine: harness.SQLite, ResumeWait: 20 * time.Millisecond})
	real := f.Agent("real-01")
	raw := make([]*harness.RawAgent, workers)
	for i := range raw {
		raw[i] = f.RawAgent(fmt.Sprintf("raw-%d", i))
	}
	round := func(w, n int) error {
		a := raw[w]
		if err := a.Connect(); err != nil {
			return err
		}
		answer := inFlight(&f.Client, a.ID)
		req, err := a.Request()
		if err != nil {
			return fmt.Errorf("%w; the caller got %+v", err, <-answer)
		}
		want := "outcome_unknown"
		if n%3 != 0 {
			want = "succeeded"
			if err := a.Answer(req.ID, okProcess); err != nil {
				return err
			}
		} else {
			a.Close()
		}
		res := <-answer
		a.Close()
		if res.State != want {
			return fmt.Errorf("the call ended as %s (%+v), want %s", res.State, res.Error, want)
		}
		return nil
	}
	realRound := func() {
		real.Stop()
		real.WaitOffline()
		real.Start()
		real.WaitOnline()
		if _, res := f.REST(f.Admin).Call(real.ID, "fs_stat", map[string]any{"path": "/"}); res.State != "succeeded" {
			t.Errorf("the real agent: %+v %+v", res, res.Error)
		}
	}
	if err := round(0, 0); err != nil {
		t.Fatal(err)
	}
	realRound()
	before := settled(0)

	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range rounds {
				if err := round(w, n); err != nil {
					t.Errorf("worker %d, round %d: %v", w, n, err)
					return
				}
				if w == 0 && n%5 == 0 {
					realRound()
				}
			}
		})
	}
	wg.Wait()
	if after := settled(before); after > before {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines before, %d after:\n%s", before, after, buf[:runtime.Stack(buf, true)])
	}
}

// settled counts the goroutines once idle HTTP connections are closed and the count is at
// most enough, or has been the lowest for a while.
func settled(enough int) int {
	lowest := int(^uint(0) >> 1)
	for tries := 0; tries < 100; tries++ {
		http.DefaultClient.CloseIdleConnections()
		if n := runtime.NumGoroutine(); n < lowest {
			lowest, tries = n, 0
		}
		if lowest <= enough {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	return lowest
}
