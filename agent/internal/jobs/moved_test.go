//go:build linux || darwin

package jobs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
)

// copied is a manager on a copy of the jobs' folder.
func (r *rig) copied() *rig {
	r.t.Helper()
	c := &rig{t: r.t, opt: r.opt}
	c.opt.Dir = filepath.Join(r.t.TempDir(), "jobs")
	if err := os.CopyFS(c.opt.Dir, os.DirFS(r.opt.Dir)); err != nil {
		r.t.Fatal(err)
	}
	c.open()
	r.t.Cleanup(c.Close)
	return c
}

// TestACopyLeavesTheFirstOnesJobsAlone: a manager on a copy of the folder, which sees free
// locks, ends no job, doesn't call it lost while it runs, and never claims to know its end.
func TestACopyLeavesTheFirstOnesJobsAlone(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	gate := filepath.Join(t.TempDir(), "gate")
	j := r.start(r.order("until [ -e " + gate + " ]; do sleep 0.05; done; exit 3"))
	c := r.copied()
	if got := c.get(j.ID); got.State != jobs.Running || !got.Away || !strings.Contains(got.Detail, "copy") {
		t.Errorf("in the copy: %+v", got)
	}
	if ended, left := c.StopAll(t.Context(), jobs.Stop{Signal: "KILL", Reason: "the copy's agent was removed"}); ended+len(left) != 0 {
		t.Errorf("the copy ended %d, %v", ended, left)
	}
	c.Close()
	if got := r.get(j.ID); got.State != jobs.Running || got.Away || got.Detail != "" || !alive(j.PID) {
		t.Errorf("in the first one: %+v", got)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, r.ended(j.ID), jobs.Failed, 3)
	eventually(t, "the supervisor is gone", func() bool { return len(r.supervisors()) == 0 })
	if e := c.ended(j.ID); e.State != jobs.Lost || !strings.Contains(e.Detail, "copy") || strings.Contains(e.Detail, "went down") {
		t.Errorf("in the copy, after its end: %+v", e)
	}
}

// TestACopyClearsNothingAway: what a supervisor that's gone has left belongs to the agent of
// the folder that it worked in.
func TestACopyClearsNothingAway(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("exec sleep 600"))
	if err := syscall.Kill(r.supervisorOf(j.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the supervisor is gone", func() bool { return len(r.supervisors()) == 0 })
	c := r.copied()
	e := c.ended(j.ID)
	c.Close()
	if e.State != jobs.Lost || !strings.Contains(e.Detail, "copy") || !alive(j.PID) {
		t.Errorf("in the copy: %+v, alive: %v", e, alive(j.PID))
	}
	if e := r.ended(j.ID); e.State != jobs.Lost || !strings.Contains(e.Detail, "went down") {
		t.Errorf("in the first one: %+v", e)
	}
	r.Close()
	if alive(j.PID) {
		t.Error("the first one has left it")
	}
}

// TestAJobOfACopiedFolderIsStopped: where the copy is the agent, whoever may stops a job
// through its supervisor.
func TestAJobOfACopiedFolderIsStopped(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("sleep 600"))
	c := r.copied()
	e, already, err := c.Stop(t.Context(), ann(), j.ID, jobs.Stop{Signal: "TERM", Grace: 5 * time.Second, Reason: "stopped by ann"})
	if err != nil || already || e.State != jobs.Lost || !strings.Contains(e.Detail, "stopped by ann") || alive(j.PID) {
		t.Errorf("%v, already: %v, %+v, alive: %v", err, already, e, alive(j.PID))
	}
	if e := r.ended(j.ID); e.State != jobs.Killed {
		t.Errorf("in the first one: %+v", e)
	}
}

// TestAFolderThatIsMoved: jobs run on in a folder that's renamed, are stopped there, and
// their ends and output are there.
func TestAFolderThatIsMoved(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	gate := filepath.Join(t.TempDir(), "gate")
	one := r.start(r.order("echo a; until [ -e " + gate + " ]; do sleep 0.05; done; echo b; exit 3"))
	two := r.start(r.order("sleep 600"))
	r.Close()
	to := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(r.opt.Dir, to); err != nil {
		t.Fatal(err)
	}
	r.opt.Dir = to
	r.open()
	if got := r.get(one.ID); got.State != jobs.Running || got.Away {
		t.Errorf("after the move: %+v", got)
	}
	e, _, err := r.Stop(context.Background(), ann(), two.ID, jobs.Stop{Signal: "TERM", Grace: time.Second, Reason: "stopped"})
	if err != nil || e.State != jobs.Killed || alive(two.PID) {
		t.Errorf("%v, %+v", err, e)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, r.ended(one.ID), jobs.Failed, 3)
	if got := r.output(one.ID, jobs.Stdout); got != "a\nb\n" {
		t.Errorf("it printed %q", got)
	}
}
