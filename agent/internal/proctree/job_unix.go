//go:build linux || darwin

package proctree

import (
	"os"
	"syscall"
	"time"

	"github.com/drover-fleet/drover/agent/internal/jobs"
)

// Start implements jobs.Tree.
func (t jobTree) Start() uint64 { return t.start }

// End implements jobs.Tree.
func (t jobTree) End(e jobs.Ending) (left []int, own bool) {
	if t.over() {
		return nil, true
	}
	sig := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}[e.Signal]
	t.sweep()
	if t.over() { // looking took its time
		return nil, true
	}
	if sig != syscall.SIGKILL {
		t.signal(sig)
		t.awaitGrace(e)
		t.sweep()
	}
	left = t.await(killWait, true)
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-e.Exited:
	case <-timer.C:
	}
	return left, false
}

// awaitGrace waits until no member lives or the grace is over.
func (t jobTree) awaitGrace(e jobs.Ending) {
	over := time.NewTimer(e.Grace)
	defer over.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for len(t.alive()) > 0 {
		select {
		case <-over.C:
			return
		case <-e.Hurry:
			return
		case <-tick.C:
		}
	}
}

// Clear implements jobs.Processes. The supervisor's session isn't trusted as a mark: its id
// may be another's by now.
func (Jobs) Clear(jobID string, pid int, start uint64) []int {
	t := &Tree{root: -1, owns: owner(JobMark + jobID), known: map[int]proc{}, keep: map[int]bool{os.Getppid(): true}, groups: lostGroups(jobID)}
	defer forgetLost(t.groups)
	if p, ok := look(pid); ok && pid > 1 && p.start == start {
		// The first process lives, so the session is still the job's.
		t.root, t.start = pid, start
	}
	t.sweep()
	return t.await(killWait, true)
}
