package meter_test

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/server/internal/meter"
)

func TestTheProgressLine(t *testing.T) {
	now := time.Unix(1000, 0)
	var out bytes.Buffer
	m := &meter.Meter{W: &out, On: true, Name: "web-01:/x\x1b[2J", Size: 10_000_000, Now: func() time.Time { return now }}
	m.From(2_000_000)
	for range 4 {
		if _, err := io.CopyN(m, zeros{}, 1_000_000); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	m.Finish()
	lines := strings.Split(out.String(), "\r")
	if last := lines[len(lines)-1]; !strings.Contains(last, " 60%  6.0 MB of 10.0 MB  1.0 MB/s  4s left") || strings.Contains(last, "\x1b[2J") {
		t.Errorf("%q", last)
	}
	if len(lines) > 8 {
		t.Errorf("%d lines in four seconds", len(lines))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
