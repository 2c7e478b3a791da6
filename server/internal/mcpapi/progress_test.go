package mcpapi

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// TestProgressOfALongCall: over 150 s progress comes at least every 15 s and at most every
// two, each with the latest line, whether the command says much, little or nothing; none comes
// after the end.
func TestProgressOfALongCall(t *testing.T) {
	// The promise's own numbers, and not the code's.
	const long, atLeast, atMost = 150 * time.Second, 15 * time.Second, 2 * time.Second
	for name, every := range map[string]time.Duration{"much": 100 * time.Millisecond, "little": 40 * time.Second, "nothing": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				last, line, told, n := began, "", "", 0
				p := newProgress(func(value float64, msg string) {
					gap := time.Since(last)
					if n++; gap > atLeast || n > 1 && gap < atMost {
						t.Errorf("message %d comes %s after the one before", n, gap)
					}
					if line != told && !strings.HasSuffix(msg, line) {
						t.Errorf("after %s it says %q, and the latest line is %q", time.Since(began), msg, line)
					}
					last, told = time.Now(), line
				}, nil)
				say := func(text string) {
					line = text
					p.update(dispatch.Update{CallID: fleet.CallID("01"), Agent: "web-01", Message: text})
				}
				say("")
				for time.Since(began) < long {
					time.Sleep(min(every, long-time.Since(began)))
					synctest.Wait()
					say(fmt.Sprint("line at ", time.Since(began)))
				}
				synctest.Wait()
				p.stop()
				before := n
				time.Sleep(time.Minute)
				if n != before || n < int(long/atLeast) {
					t.Errorf("%d messages, and %d after the end", before, n-before)
				}
			})
		})
	}
}
