package mux_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// Connections that began at different times ping at the same moments, never later than an
// interval after the ping before.
func TestConnectionsPingTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at [3][]time.Duration
		var all []*running
		for i := range at {
			a, b := newPipe(4)
			a.gate = func(_ bool, data []byte) bool {
				if strings.HasPrefix(string(data), `{"type":"ping"`) {
					at[i] = append(at[i], time.Since(began))
				}
				return true
			}
			all = append(all, run(a, mux.Config{}), run(b, mux.Config{Handler: echo}))
			time.Sleep(104 * time.Millisecond)
		}
		time.Sleep(3 * protocol.KeepAlive)
		synctest.Wait()
		for i, pings := range at {
			if len(pings) != 4 {
				t.Fatalf("pings of %d: %v", i, pings)
			}
			for k, p := range pings[1:] {
				if gap := p - pings[k]; gap > protocol.KeepAlive || gap < protocol.KeepAlive*31/32 || p != at[0][k+1] {
					t.Errorf("pings of %d: %v, of the first %v", i, pings, at[0])
				}
			}
		}
		for _, s := range all {
			s.Close(0, "")
			s.wait(t)
		}
	})
}
