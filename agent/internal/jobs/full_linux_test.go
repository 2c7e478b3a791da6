package jobs_test

import (
	"fmt"
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
	o := r.order("yes | head -c 1000000; echo err >&2; exit 4")
	o.Quota = 1 << 30
	j := r.start(o)
	e := r.ended(j.ID)
	want(t, e, jobs.Failed, 4)
	if e.Stdout.Total() != 1_000_000 || e.Stdout.Kept == 0 || e.Stdout.Kept > room || e.Stderr.Total() != 4 {
		t.Errorf("%+v, %+v", e.Stdout, e.Stderr)
	}
	if got := r.output(j.ID, jobs.Stdout); int64(len(got)) != e.Stdout.Kept {
		t.Errorf("%d bytes are there, %d were said", len(got), e.Stdout.Kept)
	}
	if time.Since(e.EndedAt) > time.Minute {
		t.Error("it took its time to write down the end")
	}
}
