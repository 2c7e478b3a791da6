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

// unseen is processes of which the supervisor of a copied job can't be looked for.
type unseen struct{ Processes }

func (unseen) Lives(string) int { panic("boom") }

// A fault in the look at one job leaves the others looked at, and the watch going on.
func TestAFaultInTheLookAtAJob(t *testing.T) {
	m, err := New(Options{Dir: t.TempDir(), Processes: unseen{}, Limits: Limits{Status: 1 << 62}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"bad", "good-1", "good-2"} {
		if _, err := m.admit(Order{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for id, j := range m.jobs {
		if j.starting = false; id == "bad" {
			j.copied, j.began = true, &began{}
		} else if err := writeFile(j.dir, endFile, end{State: Done}); err != nil {
			t.Fatal(err)
		}
	}
	m.lookAround(true)
	for id, j := range m.jobs {
		if (j.end == nil) != (id == "bad") {
			t.Errorf("%s: %+v", id, j.end)
		}
	}
}
