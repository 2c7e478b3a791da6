package proctree

import "github.com/drover-fleet/drover/agent/internal/jobs"

// Start implements jobs.Tree. A job object needs no other name for its processes.
func (t jobTree) Start() uint64 { return 0 }

// End implements jobs.Tree: all of the job object ends at once.
func (t jobTree) End(e jobs.Ending) (left []int, own bool) { return t.Kill(e.Exited) }

// Supervisor implements jobs.Tree: a process has no name that could be asked for here.
func (jobTree) Supervisor() string { return "" }

// Lives implements jobs.Processes.
func (Jobs) Lives(string) (pid int) { return 0 }

// Tell implements jobs.Processes.
func (Jobs) Tell(string) {}

// Clear implements jobs.Processes. The job object has ended with its supervisor, which held
// it alone, and everything in it.
func (Jobs) Clear(string, int, uint64) []int { return nil }
