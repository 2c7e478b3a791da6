//go:build linux || darwin

package jobs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTheLastOutputIsIn: what a program left in the pipe when it ended, though somebody else
// holds the pipe open.
func TestTheLastOutputIsIn(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d, err := newDrain(dir, Stdout, r, &room{left: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.Repeat([]byte("x"), 60_000) // less than a pipe holds
	if _, err := w.Write(last); err != nil {
		t.Fatal(err)
	}
	// The program's end comes before the first read.
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	go d.run()
	d.catchUp(time.Minute)
	if size := d.seal(); size != (Size{Kept: int64(len(last))}) {
		t.Errorf("of %d bytes: %+v", len(last), size)
	}
	if _, err := w.WriteString("later"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-d.over
	b, err := os.ReadFile(filepath.Join(dir, Stdout))
	if err != nil || !bytes.Equal(b, last) {
		t.Errorf("%d bytes are kept, %v", len(b), err)
	}
}
