package capability

import "github.com/drover-fleet/drover/agent/internal/jobs"

// jobMark is the variable that marks a job's processes in their environment.
const jobMark = "DROVER_JOB_ID="

// Start implements jobs.Tree. A job object needs no other name for its processes.
func (t jobTree) Start() uint64 { return 0 }

// End implements jobs.Tree: all of the job object ends at once.
func (t jobTree) End(e jobs.Ending) []int { return t.kill(e.Exited) }

// Clear implements jobs.Processes. The job object has ended with its supervisor, which held
// it alone, and everything in it.
func (JobProcesses) Clear(string, int, uint64) []int { return nil }
