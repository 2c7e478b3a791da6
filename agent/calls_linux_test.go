package agent

import (
	"bufio"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/protocol/capability"
)

// leftover is a process as a call of a dead agent leaves it.
func leftover(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	x := exec.Command("/bin/sh", "-c", "echo up; exec sleep 4261")
	x.Env = env
	out, err := x.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Process.Kill() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return x
}

// exited tells whether a process ends within a time.
func exited(x *exec.Cmd, d time.Duration) bool {
	done := make(chan struct{})
	go func() { _ = x.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// A restarted agent ends what its calls were doing, and nothing else: not what a call left
// in the background on purpose, not a job.
func TestARestartEndsWhatWasRunning(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	was := openJournal(dir, log)
	running, ended := t.Name()+"-running", t.Name()+"-ended"
	for _, id := range []string{running, ended} {
		if err := was.Start(journal.IDOf(id), "shell_exec", false); err != nil {
			t.Fatal(err)
		}
	}
	if err := was.End(journal.IDOf(ended), nil); err != nil {
		t.Fatal(err)
	}
	call := leftover(t, "DROVER_CALL_ID="+running)
	background := leftover(t, "DROVER_CALL_ID="+ended)
	job := leftover(t, "DROVER_CALL_ID="+running, "DROVER_JOB_ID=1")

	now := openJournal(dir, log)
	endLeftovers(now, nil, log)
	closeJournal(now, log)
	if !exited(call, 10*time.Second) {
		t.Error("what the call started lives")
	}
	if exited(background, 200*time.Millisecond) || exited(job, 200*time.Millisecond) {
		t.Error("something else was ended")
	}
	again := openJournal(dir, log)
	defer closeJournal(again, log)
	e, ok := again.Find(journal.IDOf(running))
	if !ok || e.State != journal.Lost || e.Left != 1 || len(again.Open()) != 0 {
		t.Errorf("the journal has %+v", e)
	}
}

// An agent on a copy of a state folder leaves alone what the first one, which lives, has
// running, and doesn't say that it was cut short.
func TestACopyLeavesTheFirstOnesCallsAlone(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	first := openJournal(dir, log)
	defer closeJournal(first, log)
	if err := first.Start(journal.IDOf(t.Name()), "shell_exec", false); err != nil {
		t.Fatal(err)
	}
	call := exec.Command("/bin/sh", "-c", "sleep 4262 & wait")
	call.Env = []string{proctree.CallMark + t.Name()}
	tree, err := proctree.Start(call, proctree.CallMark+t.Name(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	exit := make(chan struct{})
	go func() { _ = call.Wait(); close(exit) }()
	defer tree.Kill(exit)

	beside := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(beside, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	second := openJournal(beside, log)
	defer closeJournal(second, log)
	endLeftovers(second, nil, log)
	select {
	case <-exit:
		t.Error("the first one's command was ended")
	default:
	}
	if e, ok := second.Find(journal.IDOf(t.Name())); !ok || e.State != journal.Started {
		t.Errorf("the copy's journal has %+v", e)
	}
}

// An agent that can make no journal serves all the same, and its name for what it remembers
// is new each time.
func TestWithoutAJournalTheAgentServesOn(t *testing.T) {
	dir, log := filepath.Join(t.TempDir(), "gone"), slog.New(slog.DiscardHandler)
	a, b := openJournal(dir, log), openJournal(dir, log)
	defer closeJournal(a, log)
	defer closeJournal(b, log)
	if err := a.Start(journal.IDOf("one"), "t", false); err != nil || a.Boot() == b.Boot() {
		t.Errorf("%v; %s and %s", err, a.Boot(), b.Boot())
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}

// A fault while one call's leftovers are ended is that call's: it counts as cut short, and the
// agent starts.
func TestAFaultAtAnEarlierCallsLeftovers(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	was := openJournal(dir, log)
	bad, good := journal.IDOf(t.Name()+"-bad"), journal.IDOf(t.Name()+"-good")
	for id, tool := range map[journal.ID]string{bad: capability.JobStart.Name, good: "shell_exec"} {
		if err := was.Start(id, tool, false); err != nil {
			t.Fatal(err)
		}
	}
	now := openJournal(dir, log)
	defer closeJournal(now, log)
	endLeftovers(now, func(func(string) bool) (jobs.Job, bool, error) { panic("boom") }, log)
	for _, id := range []journal.ID{bad, good} {
		if e, ok := now.Find(id); !ok || e.State != journal.Lost {
			t.Errorf("the journal has %+v", e)
		}
	}
}
