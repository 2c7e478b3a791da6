package agent

import (
	"log/slog"
	"sync"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
)

// openJournal opens the journal of calls, or makes it. A host on which that fails, with a
// full disk for instance, is served all the same: that's when its operators are needed. A
// journal in memory claims nothing that it can't know.
func openJournal(dir string, log *slog.Logger) *journal.Journal {
	j, err := journal.Open(journal.Options{Dir: dir})
	if err != nil {
		log.Error("the journal of calls can't be opened; until the agent is started with a working one, a call that a restart cuts short ends as outcome_unknown, and its processes go on", "error", err)
		return journal.Memory()
	}
	if at := j.Aside(); at != "" {
		log.Error("the journal of calls was damaged; a new one is used, and calls that were open end as outcome_unknown", "set_aside", at)
	}
	if j.Older() {
		log.Error("the journal of calls is older than what the last agent wrote: the state folder was put back. It's used under a new name, calls that were open end as outcome_unknown, and those that it doesn't have may have left processes")
	}
	if err := j.Unwitnessed(); err != nil {
		log.Info("nothing outside the state folder tells whether the journal of calls is the newest: a call that the agent's restart cuts short ends as outcome_unknown, never as not_started", "why", err)
	}
	return j
}

func closeJournal(j *journal.Journal, log *slog.Logger) {
	if err := j.Close(); err != nil {
		log.Error("the journal of calls can't be closed", "error", err)
	}
}

// traces is jobs.Manager's Trace.
type traces func(match func(jobID string) bool) (job jobs.Job, nothing bool, err error)

// endLeftovers settles the calls that an earlier agent on this state folder began and didn't
// see the end of: what's left of their processes is ended, and they are lost. Jobs go on, and
// calls whose agent lives: a copy of its state folder has them, too, and they stay open in it.
// It takes no time when there are none, else some seconds. A job that was being started and
// wasn't yet is a call that was not begun after all; trace is nil where there are no jobs.
func endLeftovers(j *journal.Journal, trace traces, log *slog.Logger) {
	var wg sync.WaitGroup
	for _, id := range j.Open() {
		wg.Go(func() {
			e, _ := j.Find(id)
			killed, fate := 0, cutShort
			contained(log.With("tool", e.Tool, "began", e.Began), func() { killed, fate = leftoversOf(id, e, trace) })
			settle(j, id, killed, fate, log)
		})
	}
	wg.Wait()
}

// contained keeps a panic to the call that an earlier agent began: it counts as cut short.
func contained(log *slog.Logger, do func()) {
	defer fault.Catch(func(p *fault.Panic) {
		log.Error("a fault inside while what an earlier agent's call had left was ended; it may go on", "panic", p.What, "stack", p.Stack)
	})
	do()
}

// What became of a call that an earlier agent began.
const (
	cutShort   = iota
	neverBegun // nothing of its job ran
	owned      // another agent has it
)

// leftoversOf ends what a call of an earlier agent left.
func leftoversOf(id journal.ID, e journal.Entry, trace traces) (killed, fate int) {
	list, others := proctree.KillLeftovers(func(callID string) bool { return journal.IDOf(callID) == id })
	switch {
	case others:
		return 0, owned
	case e.Tool == capability.JobStart.Name && !e.HostRestarted && neverStarted(trace, id):
		return 0, neverBegun
	}
	return len(list), cutShort
}

// settle writes down what became of it.
func settle(j *journal.Journal, id journal.ID, killed, fate int, log *slog.Logger) {
	e, _ := j.Find(id)
	log = log.With("tool", e.Tool, "began", e.Began)
	var err error
	switch fate {
	case owned:
		log.Error("a call that the journal has as open was begun by another agent that isn't seen to have ended, and is left to it: this state folder is a copy of that one's")
	case neverBegun:
		log.Warn("a job wasn't started before the end of the last agent")
		err = j.Withdraw(id)
	default:
		log.Warn("a call was cut short by the end of the last agent", "ended_processes", killed)
		err = j.Lose(id, killed)
	}
	if err != nil {
		log.Error("the journal of calls can't be written", "error", err)
	}
}

// neverStarted tells that nothing ran of the job that a call was to start.
func neverStarted(trace traces, call journal.ID) bool {
	if trace == nil {
		return false
	}
	_, nothing, err := trace(func(jobID string) bool { return journal.IDOf(jobID) == call })
	return err == nil && nothing
}
