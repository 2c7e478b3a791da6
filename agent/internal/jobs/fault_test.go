package jobs

import (
	"log/slog"
	"testing"
)

// garbled is a supervisor's report that can't be read.
type garbled struct{}

func (garbled) Read([]byte) (int, error) { panic("boom") }

// A fault in the reading of a supervisor's word is that job's: it's as if no word had come.
func TestAFaultInASupervisorsWord(t *testing.T) {
	m := &Manager{log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if s := m.hear("job", garbled{}); s.err == nil {
		t.Errorf("%+v", s)
	}
}
