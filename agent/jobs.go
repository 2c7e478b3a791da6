package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/protocol/fault"
)

// SuperviseJob runs the background job that in describes, to its end; it says on out, which
// it closes, that it has started. A process of its own runs it, with Config.Supervisor as
// its command line. ctx ends the job.
func SuperviseJob(ctx context.Context, in io.Reader, out io.WriteCloser) error {
	return jobs.Supervise(ctx, in, out, capability.JobProcesses{})
}

// SelfSupervisor is a Config.Supervisor that starts the running program again, with these
// arguments. On Linux that's the very same program, also after its file was replaced.
func SelfSupervisor(args ...string) ([]string, error) {
	self, err := jobs.Self()
	if err != nil {
		return nil, fmt.Errorf("this program's own file: %w", err)
	}
	return append([]string{self}, args...), nil
}

// background is an agent's side of its jobs. Its nil offers none.
type background struct {
	*jobs.Manager
	log  *slog.Logger
	busy atomic.Bool // removed's work is going on
	stop func()      // ends the watching and waits for that
}

// openJobs finds the jobs of earlier agents on this state folder, and watches them until it's
// closed. A host on which that fails is served without jobs.
func (a *Agent) openJobs(log *slog.Logger) *background {
	if len(a.cfg.Supervisor) == 0 {
		return nil
	}
	m, err := jobs.New(jobs.Options{Dir: filepath.Join(a.cfg.State, "jobs"), Supervisor: a.cfg.Supervisor, Env: supervisorEnv(), Boot: jobs.BootID(),
		Processes: capability.JobProcesses{}, Log: log})
	if err != nil {
		log.Error("background jobs can't be served; the other tools can", "error", err)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); m.Watch(ctx) }()
	return &background{Manager: m, log: log, stop: func() { cancel(); <-watched }}
}

// manager is nil where there are no jobs.
func (b *background) manager() *jobs.Manager {
	if b == nil {
		return nil
	}
	return b.Manager
}

// trace is nil where there are no jobs.
func (b *background) trace() traces {
	if b == nil {
		return nil
	}
	return b.Trace
}

// close ends the watching. Jobs run on.
func (b *background) close() {
	if b == nil {
		return
	}
	b.stop()
	b.Close()
}

// removedGrace is how long jobs have to end when their agent was removed.
const removedGrace = 2 * time.Second

// removed ends the jobs, because the server has removed this agent or its key: what they were
// started with is void. It returns at once.
func (b *background) removed() {
	if b == nil || !b.busy.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer b.busy.Store(false)
		defer fault.Catch(func(p *fault.Panic) { // it's told again at the next try to connect
			b.log.Error("a fault inside while jobs of the removed agent were ended", "panic", p.What, "stack", p.Stack)
		})
		ended, left := b.StopAll(context.Background(), jobs.Stop{Signal: "TERM", Grace: removedGrace, Reason: "its agent was removed, or given a new key"})
		if ended+len(left) > 0 {
			b.log.Warn("the agent was removed: its background jobs are ended", "ended", ended, "left", len(left))
		}
	}()
}

// supervisorEnv is what a supervisor needs of the environment; what jobs get is decided for
// each.
func supervisorEnv() []string {
	var out []string
	for _, name := range []string{"PATH", "SystemRoot", "SystemDrive", "TEMP", "TMP"} {
		if value := os.Getenv(name); value != "" {
			out = append(out, name+"="+value)
		}
	}
	return out
}
