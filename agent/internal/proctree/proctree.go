// Package proctree starts programs so that everything that they start can be found and ended
// later: by cgroups where there are some, else by parents, sessions and marks in the
// environment; by job objects on Windows.
package proctree

import "time"

// The variables that mark processes in their environment. The value is the id; the starter's
// is the name of the agent or job's supervisor that started the program.
const (
	CallMark    = "DROVER_CALL_ID="
	JobMark     = "DROVER_JOB_ID="
	starterMark = "DROVER_STARTED_BY="
)

const (
	// termGrace is how long a process tree has between being asked to end and being killed.
	termGrace = 2 * time.Second
	// killWait is how long killed processes are waited for; what's left then is stuck in the
	// kernel or belongs to another user.
	killWait = 3 * time.Second
)
