package capability

import (
	"log/slog"
	"os"
	"os/exec"

	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/protocol/capability"
)

// JobProcesses starts and ends the processes of jobs as those of commands are.
type JobProcesses struct{}

var _ jobs.Processes = JobProcesses{}

// jobTree is a job's tree with the cgroups of its supervisor.
type jobTree struct {
	*tree
	groups *groups
}

// Start implements jobs.Processes.
func (JobProcesses) Start(x *exec.Cmd, jobID, line string) (jobs.Tree, error) {
	in, _ := findGroups(slog.New(slog.DiscardHandler)) // without cgroups the tree is found by its marks
	t, err := startTree(x, jobMark+jobID, line, in)
	if err != nil {
		in.close()
		return nil, err
	}
	return jobTree{t, in}, nil
}

// Release implements jobs.Tree.
func (t jobTree) Release() {
	t.release()
	t.groups.close()
}

// Exit implements jobs.Processes.
func (JobProcesses) Exit(state *os.ProcessState) (code int, signal string) {
	var out capability.ProcessOut
	_ = exitOf(state, &out) // a signal is in out
	return out.ExitCode, out.Signal
}
