// Package meter shows on a terminal how a copy goes.
package meter

import (
	"fmt"
	"io"
	"time"

	"github.com/drover-fleet/drover/protocol/text"
)

// Meter counts the bytes of a copy and shows how it goes, on a terminal: one line that is
// written anew. It's used by one goroutine at a time.
type Meter struct {
	W    io.Writer
	On   bool   // W is a terminal
	Name string // of the copy
	Size int64  // in bytes; -1 unknown
	Now  func() time.Time

	at    int64 // where the copy stands
	count int64 // bytes that moved now
	began time.Time
	shown time.Time
}

// meterEvery is the time between two looks at the line.
const meterEvery = 200 * time.Millisecond

// From sets where the copy stands.
func (m *Meter) From(at int64) { m.at = at }

// Moved is how many bytes have moved; of a copy that hasn't begun none.
func (m *Meter) Moved() int64 {
	if m == nil {
		return 0
	}
	return m.count
}

// Write counts b.
func (m *Meter) Write(b []byte) (int, error) {
	m.at += int64(len(b))
	m.count += int64(len(b))
	if t := m.Now(); m.On && t.Sub(m.shown) >= meterEvery {
		m.show(t)
	}
	return len(b), nil
}

func (m *Meter) show(t time.Time) {
	if m.began.IsZero() {
		m.began = t
	}
	m.shown = t
	line := fmt.Sprintf("%s  %s", text.Line(m.Name, 50), amount(m.at))
	rate := float64(m.count) / max(t.Sub(m.began).Seconds(), 0.001)
	if m.Size > 0 {
		line = fmt.Sprintf("%s  %3d%%  %s of %s", text.Line(m.Name, 50), 100*m.at/m.Size, amount(m.at), amount(m.Size))
	}
	if t.After(m.began) {
		line += fmt.Sprintf("  %s/s", amount(int64(rate)))
		if m.Size > 0 && rate > 0 {
			line += "  " + (time.Duration(float64(m.Size-m.at) / rate * float64(time.Second))).Round(time.Second).String() + " left"
		}
	}
	_, _ = fmt.Fprintf(m.W, "\r%s\x1b[K", line) // a terminal that is gone needs no progress
}

// Clear takes the line away.
func (m *Meter) Clear() {
	if m != nil && m.On && !m.shown.IsZero() {
		_, _ = fmt.Fprint(m.W, "\r\x1b[K")
	}
}

// Finish shows where the copy ended, and leaves that.
func (m *Meter) Finish() {
	if m.On {
		m.show(m.Now())
		_, _ = fmt.Fprintln(m.W)
	}
}

// amount writes bytes for people.
func amount(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < 4 {
		v /= unit
		i++
	}
	return fmt.Sprintf("%.1f %cB", v, "kMGTP"[i])
}
