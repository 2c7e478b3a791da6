package journal

import (
	"os"
	"path/filepath"
	"testing"
)

// A call that the witness can't be told of doesn't start: an older journal could pass for
// the newest then.
func TestACallThatTheWitnessDoesNotTakeIsWithdrawn(t *testing.T) {
	j, err := Open(Options{Dir: t.TempDir(), Slots: 8})
	if err != nil {
		t.Fatal(err)
	}
	closed, err := os.Create(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	good := j.witness.f
	j.witness.f = closed
	if err := j.Start(IDOf("one"), "t", false); err == nil {
		t.Error("it starts")
	}
	if e, ok := j.Find(IDOf("one")); !ok || e.State != Withdrawn {
		t.Errorf("%+v, %v", e, ok)
	}
	j.witness.f = good
	if err := j.Start(IDOf("two"), "t", false); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
