// Package jobs keeps background jobs: programs that outlive the call that started them, the
// connection, the server and the agent. Each runs under a small supervisor, a process of its
// own, which writes down in the job's folder how the job ended; the manager inside the agent
// starts supervisors and reads those folders.
package jobs

import (
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// State is how a job stands. A job that isn't Running never changes again.
type State string

// The states.
const (
	Running State = "running"
	Done    State = "done"   // exit code 0
	Failed  State = "failed" // another exit code, a signal from elsewhere, or it couldn't start
	Killed  State = "killed" // ended on demand or by its time limit
	Lost    State = "lost"   // its supervisor went down without having written its end
)

// Streams of a job's output, and the names of their files.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Order is a job to start.
type Order struct {
	ID      string // the call's: a second job of that id is refused
	Name    string
	Command string // as lists show it
	Caller  protocol.Caller
	Program Program
	Timeout time.Duration
	Quota   int64 // bytes of output that are kept
}

// Program is what a job runs.
type Program struct {
	Path  string
	Argv  []string // with argv[0]
	Line  string   // on Windows the exact command line instead of Argv; "" elsewhere
	Dir   string
	Env   []string
	Stdin string
}

// Job is one job as it stands.
type Job struct {
	ID, Name, Command string
	Caller            protocol.Caller
	State             State
	ExitCode          *int   // nil while it runs and where it isn't known
	Signal            string // such as SIGKILL
	Detail            string // why it ended, where it didn't end by itself
	Away              bool   // it runs under another state folder, of which this one is a copy
	PID               int    // 0 when it didn't start, or isn't known
	Never             bool   // its program certainly wasn't started
	StartedAt         time.Time
	EndedAt           time.Time // zero while it runs; of a lost job when that was noticed
	Stdout, Stderr    Size
	Left              []int // processes that could not be killed
}

// Size counts a stream's bytes.
type Size struct {
	Kept    int64 `json:"kept"`
	Dropped int64 `json:"dropped"` // at its end: the quota or the disk was full
}

// Total is what the job has written.
func (s Size) Total() int64 { return s.Kept + s.Dropped }

// Limits bound what jobs take of a host. A zero member has the default. Of places, and of
// output of jobs that run, one principal has half at most; of what has ended, the oldest of
// the principal that has the most goes first.
type Limits struct {
	Running  int           // jobs at once; 64
	Stored   int64         // bytes of output over all jobs; 2 GiB
	Output   time.Duration // how long the output of an ended job is kept; a day
	Status   time.Duration // how long an ended job is listed; 7 days
	Finished int           // ended jobs that are listed; 1,000
}

func (l *Limits) fill() {
	or := func(n *time.Duration, d time.Duration) {
		if *n == 0 {
			*n = d
		}
	}
	or(&l.Output, 24*time.Hour)
	or(&l.Status, 7*24*time.Hour)
	if l.Running == 0 {
		l.Running = capability.MaxJobs
	}
	if l.Stored == 0 {
		l.Stored = 2 << 30
	}
	if l.Finished == 0 {
		l.Finished = 1000
	}
}

// Options set up a Manager. All but Limits and Now are required.
type Options struct {
	// Dir holds a folder for each job; it's made when it isn't there.
	Dir string
	// Supervisor is the command line that runs Supervise.
	Supervisor []string
	// Env is the environment of supervisors, beside their mark.
	Env []string
	// Boot names this run of the host's system (see BootID); "" where that isn't known.
	Boot      string
	Processes Processes
	Log       *slog.Logger
	Limits    Limits
	Now       func() time.Time
}

// Processes is what jobs need of the system's processes.
type Processes interface {
	// Start starts x as the root of a tree that's marked by the job's id. line is the exact
	// command line on Windows, "" elsewhere.
	Start(x *exec.Cmd, jobID, line string) (Tree, error)
	// Clear kills what is left of a job whose supervisor is gone, as far as it's found, and
	// returns what could not be killed. pid is 0 when it isn't known; with start it names
	// the job's first process.
	Clear(jobID string, pid int, start uint64) (left []int)
	// Lives tells the id of a supervisor that Tree.Supervisor named and that lives, 0 when it
	// isn't seen to.
	Lives(supervisor string) (pid int)
	// Tell asks such a supervisor to end, and its job with it.
	Tell(supervisor string)
	// Exit tells how a process ended: its code, 128+n with the name of signal n.
	Exit(state *os.ProcessState) (code int, signal string)
}

// Tree is a job's program with all that it started.
type Tree interface {
	// Start is the time of its first process's start in the system's own unit: with its id,
	// it names that process.
	Start() uint64
	// Supervisor names this process, which started the tree; "" where it can't be named.
	Supervisor() string
	// End ends the tree and returns what could not be killed. When its first process has ended
	// by itself, waited for or not, nothing is done, and own is true.
	End(Ending) (left []int, own bool)
	// Release ends the bookkeeping; what lives on isn't touched.
	Release()
}

// Ending says how a tree is ended.
type Ending struct {
	Signal string // TERM, INT or KILL
	Grace  time.Duration
	Hurry  <-chan struct{} // closed: the grace is over
	Exited <-chan struct{} // closed when the first process was waited for
}

// mark is the variable by which a supervisor, and a job's processes, are known.
const mark = "DROVER_JOB_ID="
