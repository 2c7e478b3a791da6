//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestWhatWaitedForAStoppedReplica: a replica was stopped for so long that it was taken for
// dead. What clients asked of it meanwhile is made or refused when it goes on: every call that
// is on record gets an outcome, and what ran isn't said not to have, nor ran twice.
func TestWhatWaitedForAStoppedReplica(t *testing.T) {
	a, b := replicas(t)
	b.Host("web-01")
	a.WaitState("web-01", "online")
	effect := filepath.Join(t.TempDir(), "effect")
	a.Server.Freeze()
	defer a.Server.Thaw()
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			in, _ := json.Marshal(map[string]any{"agent_id": "web-01", "tool": "shell_exec", "args": map[string]any{"command": "echo $DROVER_CALL_ID >> " + effect}})
			status, body := a.REST(a.Admin).Do("POST", "/api/v1/calls", string(in))
			var res harness.CallResult
			if err := json.Unmarshal(body, &res); err != nil {
				t.Errorf("call %d: HTTP %d %s", i, status, body)
			}
			if res.Error != nil && !slices.Contains([]string{"unavailable", "offline", "not_started", "outcome_unknown"}, res.Error.Code) {
				t.Errorf("call %d: %s %+v", i, res.State, res.Error)
			}
		})
	}
	harness.Eventually(t, time.Minute, "the other replica takes it for dead", func() bool {
		return bytes.Contains(b.Server.Log(), []byte("has stopped without a word"))
	})
	a.Server.Thaw()
	all.Wait()
	ended := map[string]string{}
	harness.Eventually(t, 45*time.Second, "an outcome of every call", func() bool {
		intents := 0
		for _, row := range b.AllRecords() {
			switch row.Kind {
			case "intent":
				intents++
			case "outcome":
				ended[row.CallID] = row.Body.State
			}
		}
		return len(ended) == intents
	})
	runs := map[string]bool{}
	for id := range strings.FieldsSeq(read(t, effect)) {
		if state := ended[id]; state == "" || state == "not_started" || runs[id] {
			t.Errorf("call %s ran, before that: %t, and is recorded as %q", id, runs[id], state)
		}
		runs[id] = true
	}
	harness.Eventually(t, 30*time.Second, "calls through the replica that's back", func() bool {
		_, res := a.REST(a.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
		return res.State == "succeeded"
	})
}
