package capability

import (
	"os"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/protocol/capability"
)

// JobProcesses starts and ends the processes of jobs as those of commands are.
type JobProcesses struct{ proctree.Jobs }

var _ jobs.Processes = JobProcesses{}

// Exit implements jobs.Processes.
func (JobProcesses) Exit(state *os.ProcessState) (code int, signal string) {
	var out capability.ProcessOut
	_ = exitOf(state, &out) // a signal is in out
	return out.ExitCode, out.Signal
}
