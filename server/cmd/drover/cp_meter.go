package main

import (
	"fmt"
	"io"
	"time"

	"github.com/drover-fleet/drover/protocol/text"
)

// meter counts the bytes of a copy and shows how it goes, on a terminal: one line that is
// written anew. It's used by one goroutine at a time.
type meter struct {
	w     io.Writer
	on    bool // w is a terminal
	name  string
	size  int64 // -1 unknown
	now   func() time.Time
	at    int64 // where the copy stands
	count int64 // bytes that moved now
	began time.Time
	shown time.Time
}

// meterEvery is the time between two looks at the line.
const meterEvery = 200 * time.Millisecond

// from sets where the copy stands.
func (m *meter) from(at int64) { m.at = at }

// moved is how many bytes have moved; of a copy that hasn't begun none.
func (m *meter) moved() int64 {
	if m == nil {
		return 0
	}
	return m.count
}

// Write counts b.
func (m *meter) Write(b []byte) (int, error) {
	m.at += int64(len(b))
	m.count += int64(len(b))
	if t := m.now(); m.on && t.Sub(m.shown) >= meterEvery {
		m.show(t)
	}
	return len(b), nil
}

func (m *meter) show(t time.Time) {
	if m.began.IsZero() {
		m.began = t
	}
	m.shown = t
	line := fmt.Sprintf("%s  %s", text.Line(m.name, 50), amount(m.at))
	rate := float64(m.count) / max(t.Sub(m.began).Seconds(), 0.001)
	if m.size > 0 {
		line = fmt.Sprintf("%s  %3d%%  %s of %s", text.Line(m.name, 50), 100*m.at/m.size, amount(m.at), amount(m.size))
	}
	if t.After(m.began) {
		line += fmt.Sprintf("  %s/s", amount(int64(rate)))
		if m.size > 0 && rate > 0 {
			line += "  " + (time.Duration(float64(m.size-m.at) / rate * float64(time.Second))).Round(time.Second).String() + " left"
		}
	}
	_, _ = fmt.Fprintf(m.w, "\r%s\x1b[K", line) // a terminal that is gone needs no progress
}

// clear takes the line away.
func (m *meter) clear() {
	if m != nil && m.on && !m.shown.IsZero() {
		_, _ = fmt.Fprint(m.w, "\r\x1b[K")
	}
}

// finish shows where the copy ended, and leaves that.
func (m *meter) finish() {
	if m.on {
		m.show(m.now())
		_, _ = fmt.Fprintln(m.w)
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
