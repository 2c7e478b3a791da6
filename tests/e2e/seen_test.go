package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestLastSeen: who is online is seen now, whatever the store has written down so far, in lists
// and alone; who has gone isn't seen any more, and no earlier than it was shown.
func TestLastSeen(t *testing.T) {
	f := harness.New(t, harness.Options{})
	agent := f.Agent("web-01")
	api := f.REST(f.Admin)
	type info struct {
		State    string    `json:"state"`
		Since    time.Time `json:"since"`
		LastSeen time.Time `json:"last_seen"`
	}
	var shown time.Time
	look := func(state string) {
		t.Helper()
		var one info
		var all struct {
			Agents []info `json:"agents"`
		}
		asked := time.Now()
		if code := api.JSON("GET", "/api/v1/agents/web-01", nil, &one); code != 200 {
			t.Fatalf("HTTP %d", code)
		}
		if code := api.JSON("GET", "/api/v1/agents", nil, &all); code != 200 || len(all.Agents) != 1 {
			t.Fatalf("HTTP %d %+v", code, all)
		}
		for _, g := range []info{one, all.Agents[0]} {
			if g.State != state || g.LastSeen.Before(g.Since) || (state == "online") != !g.LastSeen.Before(asked.Truncate(time.Microsecond)) {
				t.Errorf("%s since %s, last seen %s, asked at %s", g.State, g.Since, g.LastSeen, asked)
			}
			shown = g.LastSeen
		}
	}
	look("online")
	look("online")
	last := shown
	agent.Stop()
	f.WaitState("web-01", "offline")
	harness.Eventually(t, 10*time.Second, "its end is noted", func() bool {
		look("offline")
		return !shown.Before(last)
	})
	_, res := api.Call("web-01", "shell_exec", map[string]any{"command": "true"})
	if res.Error == nil || !strings.Contains(res.Error.Message, "last seen "+shown.UTC().Format(time.RFC3339)) {
		t.Errorf("a call says %+v, the list %s", res.Error, shown)
	}
}
