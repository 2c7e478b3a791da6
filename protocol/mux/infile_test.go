package mux

import (
	"context"
	"errors"
	"io"
	"testing"
)

// nosy is a context that somebody acts on at the moment when it's asked for its end.
type nosy struct {
	context.Context
	asked func()
}

func (n nosy) Err() error { n.asked(); return n.Context.Err() }

// The reader resets a stream at any moment, also between the look for bytes and the taking of
// them: an agent's frames must not be able to make that a panic.
func TestAResetBetweenTheLookAndTheTaking(t *testing.T) {
	f := &inFile{s: &Session{cfg: Config{}}, wake: make(chan struct{}, 1), win: newWindow(1000, 100)}
	if bad := f.push([]byte("some of it"), false); bad != "" {
		t.Fatal(bad)
	}
	err := f.copyTo(t.Context(), nosy{t.Context(), f.void}, io.Discard)
	if !errors.Is(err, ErrReset) {
		t.Errorf("%v, not a reset", err)
	}
}
