package pending

import (
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// A flood that never pauses is written all the same: the shared rows of a second go out in
// the next, however much comes in then.
func TestSharedRowsGoOutDuringAFlood(t *testing.T) {
	for principal, rows := range map[string]int{"": 1, "pat:loud": PerSecond + 1} {
		b := NewRefusals()
		const start, seconds, each = int64(1_700_000_000), 5, 100
		counted := 0
		for second := start; second < start+seconds; second++ {
			for i := range each {
				b.Add(&fleet.Refusal{Principal: principal, Code: protocol.CodeUnauthenticated, Count: 1}, second)
				if i != each/2 {
					continue
				}
				// The writer's tick comes in the middle of the flood.
				out := b.Take(time.Unix(second, 0), false)
				if most := rows; len(out) > most {
					t.Errorf("%q, second %d: %d rows, want at most %d", principal, second-start, len(out), most)
				}
				for _, o := range out {
					counted += o.Count
				}
			}
			if waiting := int(second-start+1)*each - counted; waiting > 2*each {
				t.Errorf("%q, second %d: %d refusals wait", principal, second-start, waiting)
			}
		}
		for _, o := range b.End() {
			counted += o.Count
		}
		if counted != seconds*each {
			t.Errorf("%q: %d refusals counted, want %d", principal, counted, seconds*each)
		}
	}
}
