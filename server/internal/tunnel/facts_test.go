package tunnel

import (
	"testing"

	"github.com/drover-fleet/drover/protocol"
)

// What an agent repeats isn't written again, nor is a clock that is measured a second
// otherwise.
func TestWhatIsNews(t *testing.T) {
	var box factsBox
	facts := func(host string, ahead int64) *protocol.FactsUpdate {
		return &protocol.FactsUpdate{Facts: protocol.Facts{Hostname: host, ClockAheadMS: ahead}, Capabilities: []protocol.Capability{}}
	}
	for i, c := range []struct {
		f    *protocol.FactsUpdate
		news bool
	}{
		{facts("a", 0), true}, {facts("a", 1000), false}, {facts("a", -1999), false}, {facts("a", 2000), true},
		{facts("a", 3000), false}, {facts("b", 3000), true}, {facts("b", 3000), false}, {facts("a", 3000), true},
	} {
		if got := box.heard(c.f); got != c.news {
			t.Errorf("%d: %+v is news: %t", i, c.f.Facts, got)
		}
	}
}
