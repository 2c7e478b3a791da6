package e2e

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// withKey makes a call with an idempotency key, whose command leaves a line.
func withKey(c *harness.Client, agent, effect, key string) (res harness.CallResult) {
	c.REST(c.Admin).JSON("POST", "/api/v1/calls", map[string]any{
		"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": "echo line >> " + effect}, "idempotency_key": key,
	}, &res)
	return res
}

// TestAKeyIsNotSpentByWhatNeverRan: a key that was used while its agent was away can be used
// again, by many callers at the moment when the agent comes; it runs once, and from then on
// the key names that call.
func TestAKeyIsNotSpentByWhatNeverRan(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			keyAgain(t, d, []*harness.Deployment{d, d})
		})
	}
}

// TestAKeyOverReplicas is TestAKeyIsNotSpentByWhatNeverRan with callers on two replicas.
func TestAKeyOverReplicas(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	keyAgain(t, a, []*harness.Deployment{a, b})
}

func keyAgain(t *testing.T, d *harness.Deployment, at []*harness.Deployment) {
	state := filepath.Join(t.TempDir(), "state")
	host := hostOn(t, d, state, d.Run("enroll", "create", "--agent-id", "web-01"))
	at[1].WaitState("web-01", "online")
	host.Stop()
	for _, c := range at {
		c.WaitState("web-01", "offline")
	}
	h := newHeld(t)
	first := withKey(&d.Client, "web-01", h.effect, "k")
	if first.Error == nil || first.Error.Code != "offline" || first.State != "not_started" {
		t.Fatalf("while the agent is away: %+v %+v", first, first.Error)
	}
	var all sync.WaitGroup
	results := make([]harness.CallResult, 8)
	deadline := time.Now().Add(time.Minute)
	for i := range results {
		all.Go(func() {
			for results[i].State != "succeeded" && time.Now().Before(deadline) {
				results[i] = withKey(&at[i%2].Client, "web-01", h.effect, "k")
			}
		})
	}
	hostOn(t, d, state, "")
	all.Wait()
	for i, res := range results {
		if res.State != "succeeded" || res.CallID != results[0].CallID || res.CallID == first.CallID {
			t.Errorf("caller %d: %s is %s %+v; the first caller's is %s", i, res.CallID, res.State, res.Error, results[0].CallID)
		}
	}
	if n := h.lines(); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	if last := withKey(&d.Client, "web-01", h.effect, "k"); last.CallID != results[0].CallID || h.lines() != 1 {
		t.Errorf("the key names %s, it ran %d times", last.CallID, h.lines())
	}
}
