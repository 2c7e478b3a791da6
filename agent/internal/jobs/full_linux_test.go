package jobs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/tests/testenv"
)

// TestAFullDisk: the job goes on, what doesn't fit is counted, and how it ended is written
// down all the same.
func TestAFullDisk(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	const room = 256 << 10
	err := unix.Mount("tmpfs", r.opt.Dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", room))
	testenv.Require(t, err == nil, fmt.Sprintf("a small file system can't be mounted (%v); run as root", err))
	t.Cleanup(func() {
		eventually(t, "nothing uses the file system", func() bool { return unix.Unmount(r.opt.Dir, 0) == nil })
	})
	r.open()
	ballast, gate := filepath.Join(r.opt.Dir, "ballast"), filepath.Join(t.TempDir(), "gate")
	if err := os.WriteFile(ballast, make([]byte, room/4), 0o600); err != nil {
		t.Fatal(err)
	}
	o := r.order("yes | head -c 1000000; echo err >&2; until [ -e " + gate + " ]; do sleep 0.05; done; echo more; exit 4")
	o.Quota = 1 << 30
	j := r.start(o)
	full := func() bool { s := r.get(j.ID); return s.Stdout.Kept > 0 && diskIsFull(r.opt.Dir) }
	eventually(t, "the disk is full", full)
	// There's room again, but what would come into it isn't what follows.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := r.ended(j.ID)
	want(t, e, jobs.Failed, 4)
	if e.Stdout.Total() != 1_000_005 || e.Stdout.Kept == 0 || e.Stdout.Kept > room || e.Stderr.Total() != 4 {
		t.Errorf("%+v, %+v", e.Stdout, e.Stderr)
	}
	if got := r.output(j.ID, jobs.Stdout); int64(len(got)) != e.Stdout.Kept || strings.Contains(got, "more") {
		t.Errorf("%d bytes are there, %d were said; the end is %q", len(got), e.Stdout.Kept, got[max(0, len(got)-10):])
	}
	if time.Since(e.EndedAt) > time.Minute {
		t.Error("it took its time to write down the end")
	}
}

func diskIsFull(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Bfree == 0
}
