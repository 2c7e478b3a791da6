package proctree

import (
	"log/slog"
	"os/exec"

	"github.com/drover-fleet/drover/agent/internal/jobs"
)

// Jobs starts and ends the processes of jobs as those of commands are. It lacks Exit of
// jobs.Processes.
type Jobs struct{}

// jobTree is a job's tree with the cgroups of its supervisor.
type jobTree struct {
	*Tree
	in *Groups
}

// Start implements jobs.Processes.
func (Jobs) Start(x *exec.Cmd, jobID, line string) (jobs.Tree, error) {
	in, _ := FindGroups(slog.New(slog.DiscardHandler)) // without cgroups the tree is found by its marks
	t, err := Start(x, JobMark+jobID, line, in)
	if err != nil {
		in.Close()
		return nil, err
	}
	return jobTree{t, in}, nil
}

// Release implements jobs.Tree.
func (t jobTree) Release() {
	t.Tree.Release()
	t.in.Close()
}
