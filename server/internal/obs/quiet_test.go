package obs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What a peer can repeat fills no log: a few lines a minute, then how many more there were;
// another agent's lines, and another minute's, are written.
func TestRepeatedLinesAreCounted(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	var q Quiet
	now := time.Now()
	lines := func(agent string, n int) (written int) {
		for range n {
			if q.Allow("agent refused (removed)", agent, now) {
				written++
			}
		}
		return written
	}
	if a, b := lines("web-01", 219), lines("db-01", 2); a != quietLines || b != 2 {
		t.Errorf("%d and %d lines were written", a, b)
	}
	now = now.Add(quietFor / 2)
	q.Tell(log, now)
	if lines("web-01", 1) != 0 || b.Len() != 0 {
		t.Errorf("the minute isn't over, but: %s", &b)
	}
	now = now.Add(quietFor / 2)
	q.Tell(log, now)
	if got := b.String(); !strings.Contains(got, "agent refused (removed): 215 more in 1m0s") || !strings.Contains(got, "agent=web-01") || strings.Contains(got, "db-01") {
		t.Errorf("what was left out is told as %q", got)
	}
	if len(q.kinds) != 0 || lines("web-01", 1) != 1 {
		t.Error("the next minute begins with the last one's count")
	}
}
