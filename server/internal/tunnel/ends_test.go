package tunnel_test

import (
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// TestWhichEndsBrokeOff: calls wait a moment for an agent whose connection broke, or gave way
// to a newer one. They don't for one that said that it goes, was shut out, or had been silent.
func TestWhichEndsBrokeOff(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(r *rig, o *online)
		broke bool
	}{
		"the line is cut":  {func(_ *rig, o *online) { o.session.Close(0, "") }, true},
		"it gives way":     {func(r *rig, _ *online) { r.presence.CloseAgent("web-01", protocol.CloseReplaced, "a newer one") }, true},
		"it stops":         {func(_ *rig, o *online) { o.session.Close(protocol.CloseGoingAway, "shutting down") }, false},
		"it's removed":     {func(r *rig, _ *online) { r.presence.CloseAgent("web-01", protocol.CloseRemoved, "removed") }, false},
		"the server stops": {func(r *rig, _ *online) { _ = r.tunnel.Close(r.t.Context()) }, false},
		"it says goodbye":  {func(_ *rig, o *online) { o.session.Goodbye("for now", 0) }, false},
		"it breaks the rules": {func(r *rig, o *online) {
			_ = o.session.Send(r.t.Context(), map[string]any{"type": "response", "ID": 1})
		}, false},
		"it has become silent": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(cfg *tunnel.Config) {
				if c.end == nil {
					cfg.KeepAlive = 200 * time.Millisecond
				}
			})
			if h := r.enrolled("web-01"); c.end != nil {
				c.end(r, r.connect(h))
			} else {
				r.line(h).say(t, `{"type":"resume","boot":"b"}`)
				eventually(t, "online", func() bool { _, ok := r.presence.Online("web-01"); return ok })
			}
			eventually(t, "offline", func() bool { return r.presence.Len() == 0 })
			if r.presence.BrokeOff("web-01") != c.broke || r.presence.BrokeOff("web-02") {
				t.Errorf("broke off: %t", !c.broke)
			}
			if c.broke {
				eventually(t, "it's gone for good", func() bool { return !r.presence.BrokeOff("web-01") })
			}
		})
	}
}
