package agent

import (
	"log/slog"
	"sync"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/proctree"
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

// endLeftovers settles the calls that an earlier agent on this state folder began and didn't
// see the end of: what's left of their processes is ended, and they are lost. Jobs go on, and
// calls whose agent lives: a copy of its state folder has them, too, and they stay open in it.
// It takes no time when there are none, else some seconds.
func endLeftovers(j *journal.Journal, log *slog.Logger) {
	var wg sync.WaitGroup
	for _, id := range j.Open() {
		wg.Go(func() {
			killed, owned := proctree.KillLeftovers(func(callID string) bool { return journal.IDOf(callID) == id })
			e, _ := j.Find(id)
			if owned {
				log.Error("a call that the journal has as open was begun by another agent that isn't seen to have ended, and is left to it: this state folder is a copy of that one's", "tool", e.Tool, "began", e.Began)
				return
			}
			log.Warn("a call was cut short by the end of the last agent", "tool", e.Tool, "began", e.Began, "ended_processes", killed)
			if err := j.Lose(id, len(killed)); err != nil {
				log.Error("the journal of calls can't be written", "error", err)
			}
		})
	}
	wg.Wait()
}
