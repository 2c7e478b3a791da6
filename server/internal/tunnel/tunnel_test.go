package tunnel_test

import (
	"testing"

	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func TestCall(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	o := r.connect(h)
	c, ok := r.presence.Route("web-01", 1)
	if !ok {
		t.Fatal("no route")
	}
	resp, err := c.Call(t.Context(), newRequest("shell_exec", `{"command" : "echo \u0061"}`), mux.Exchange{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(resp.Result), `{"agent":"web-01","args":{"command" : "echo \u0061"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, ok := r.presence.Route("web-01", 2); ok {
		t.Error("routed to another generation")
	}
	o.stop()
	eventually(t, "offline", func() bool { _, ok := r.presence.Route(fleet.AgentID("web-01"), 1); return !ok })
}
