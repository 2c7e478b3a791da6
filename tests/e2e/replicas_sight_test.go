package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestLastSeenOnAnotherReplica: when an agent was seen last is told by a replica that it was
// never connected to as by the one that held its tunnel, in the list and in the error.
func TestLastSeenOnAnotherReplica(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	host := hostOn(t, a, filepath.Join(t.TempDir(), "state"), a.Run("enroll", "create", "--agent-id", "web-01"))
	b.WaitState("web-01", "online")
	seen := func(d *harness.Deployment) time.Time {
		var got struct {
			LastSeen time.Time `json:"last_seen"`
		}
		d.REST(d.Admin).JSON("GET", "/api/v1/agents/web-01", nil, &got)
		return got.LastSeen.Truncate(time.Microsecond) // as the database has it
	}
	before := seen(b)
	host.Stop()
	a.WaitState("web-01", "offline")
	b.WaitState("web-01", "offline")
	var left time.Time
	harness.Eventually(t, 10*time.Second, "its end on the replica that held it", func() bool {
		left = seen(a)
		return left.After(before)
	})
	harness.Eventually(t, time.Minute, "the same on the other replica", func() bool { return seen(b).Equal(left) })
	_, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
	if res.Error == nil || !strings.Contains(res.Error.Message, "last seen "+left.UTC().Format(time.RFC3339)) {
		t.Errorf("a call through the other replica: %+v, want last seen %s", res.Error, left)
	}
}
