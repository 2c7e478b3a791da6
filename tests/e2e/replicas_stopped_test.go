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
	t.Parallel()
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

// TestAQueuedCallOfAReplicaThatIsBackTooSoon: a replica was taken for dead, and is back before
// the others have taken over what it had queued. The call isn't nobody's for that: it's sent
// when its agent comes, once.
func TestAQueuedCallOfAReplicaThatIsBackTooSoon(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	raw := a.RawAgent("web-01")
	connect(t, raw, "journal.boot")
	raw.Close()
	a.WaitState("web-01", "offline")
	var queued harness.CallResult
	a.REST(a.Admin).JSON("POST", "/api/v1/calls", map[string]any{
		"agent_id": "web-01", "tool": "shell_exec", "queue_for_seconds": 3600, "wait_seconds": 1, "args": map[string]any{"command": "true"},
	}, &queued)
	if queued.State != "queued" {
		t.Fatalf("%+v %+v", queued, queued.Error)
	}
	a.Server.Freeze()
	defer a.Server.Thaw()
	db := harness.OpenPostgres(t, a.Store[3])
	lock, err := db.Begin() // the others see that the replica is dead, and can't take its calls yet
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	if _, err := lock.Exec("LOCK TABLE calls IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, time.Minute, "the other replica takes it for dead", func() bool {
		return bytes.Contains(b.Server.Log(), []byte("has stopped without a word"))
	})
	a.Server.Thaw()
	harness.Eventually(t, 20*time.Second, "it's a member again", func() bool {
		var n int
		return db.QueryRow("SELECT COUNT(*) FROM replicas").Scan(&n) == nil && n == 2
	})
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	raw = raw.At(&b.Client)
	connect(t, raw, "journal.boot")
	defer raw.Close()
	req, err := raw.Request()
	if err != nil || req.ID != queued.CallID {
		t.Fatalf("the queued call wasn't sent: %+v, %v; it's %s", req, err, stateOf(&b.Client, queued.CallID))
	}
	if err := raw.Answer(req.ID, okProcess); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*harness.Deployment{a, b} {
		if got := await(t, &d.Client, queued.CallID); got.State != "succeeded" {
			t.Errorf("%s %+v", got.State, got.Error)
		}
	}
	oneEach(t, b)
}
