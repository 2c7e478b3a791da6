package tunnel_test

import (
	"testing"

	"github.com/drover-fleet/drover/protocol/mux"
)

// BenchmarkCall is one small call over a real WebSocket on loopback, one at a time.
func BenchmarkCall(b *testing.B) {
	r := newRig(b)
	h := r.enrolled("web-01")
	r.connect(h)
	c, ok := r.presence.Route("web-01", 1)
	if !ok {
		b.Fatal("no route")
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Call(b.Context(), newRequest("fs_stat", `{"path":"/"}`), mux.Exchange{}); err != nil {
			b.Fatal(err)
		}
	}
}
