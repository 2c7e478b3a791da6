package cluster

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// TestWhileTheOthersAreNotHeard: when NATS is there again, agents count as perhaps online, with
// the reason, until each other replica that the database lists has told of its own.
func TestWhileTheOthersAreNotHeard(t *testing.T) {
	key, url := serverKey(t), natsURL(t)
	r := &replica{t: t}
	r.local = presence.New(func(id fleet.AgentID, _ bool) { r.Changed(id) })
	r.run(Config{
		URL: url, ServerKey: key, Local: r.local, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Members: func(context.Context) (int, error) { return 1, nil },
	})
	r.back()
	if !r.CatchingUp() || !strings.Contains(r.Why(), "hasn't heard") {
		t.Errorf("catching up: %t, %q", r.CatchingUp(), r.Why())
	}
	newReplica(t, key, url)
	eventually(t, "the other one is heard", func() bool { return !r.CatchingUp() })
	if r.heard() != 1 || r.Why() != "" {
		t.Errorf("%d heard, %q", r.heard(), r.Why())
	}
}
