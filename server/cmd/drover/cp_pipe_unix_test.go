//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCpRefusesNamedPipes: opening one would wait for its other end, and nothing ends that.
func TestCpRefusesNamedPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r := run{env: map[string]string{"DROVER_PAT": "drv_pat_x", "DROVER_URL": "http://127.0.0.1:1"}}
	for _, args := range [][]string{{pipe, "web-01:/x"}, {"web-01:/x", pipe}} {
		if got := r.drover(t.Context(), append([]string{"cp"}, args...)...); got.code != exitCall || !strings.Contains(got.err, "named pipe") {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
