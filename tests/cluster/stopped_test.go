//go:build unix

package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestWhatWaitedForAStoppedReplica: a replica was stopped for so long that it was taken for
// dead. Calls that clients sent to it meanwhile are refused or made when it goes on, and each
// that's on record has an outcome.
func TestWhatWaitedForAStoppedReplica(t *testing.T) {
	r := newRig(t, 2)
	l := newLoad(t, r, 20)
	stopped, other := r.replicas[0], r.replicas[1]
	stopped.Server.Freeze()
	defer stopped.Server.Thaw()
	const calls = 60
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			agent, n := l.agents[i%len(l.agents)], fmt.Sprintf("w%d", i)
			in, _ := json.Marshal(map[string]any{"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": l.effects.command(agent, n, false)}})
			status, body := stopped.REST(stopped.Admin).Do("POST", "/api/v1/calls", string(in))
			var res harness.CallResult
			if err := json.Unmarshal(body, &res); err != nil {
				t.Errorf("%s: HTTP %d %s", n, status, body)
			}
			a := answer{n: n, agent: agent, call: res.CallID, state: res.State}
			if res.Error != nil {
				a.code = res.Error.Code
			}
			mu.Lock()
			defer mu.Unlock()
			l.answers = append(l.answers, a)
		})
	}
	harness.Eventually(t, time.Minute, "the other one takes it for dead", func() bool {
		return bytes.Contains(other.Server.Log(), []byte("has stopped without a word"))
	})
	stopped.Server.Thaw()
	all.Wait()
	l.recovered(time.Minute)
	l.settled("offline", "unavailable", "not_started", "outcome_unknown")
}
