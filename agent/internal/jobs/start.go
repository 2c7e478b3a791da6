package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/share"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/strict"
)

const (
	// reportTime is how long a supervisor may take to say that the program runs.
	reportTime = 25 * time.Second
	// abandonTime is how long a job is watched to end that was given up while it started.
	abandonTime = 8 * time.Second
)

// NotStarted says that the system didn't start a job's program. Unwrap gives its errno, if
// it named one.
type NotStarted struct {
	Message string
	Errno   syscall.Errno
}

// Error implements error.
func (e *NotStarted) Error() string { return e.Message }

// Unwrap returns the system's error, nil when there's none.
func (e *NotStarted) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Start starts a job and returns once its program runs. The error is a *NotStarted when the
// system refused the program, a *protocol.Error when a limit is reached or the id is known
// already, ErrAbandoned (in the chain) when ctx ended first, or the supervisor, and the job
// was ended again; any other means that nothing was started.
func (m *Manager) Start(ctx context.Context, o Order) (Job, error) {
	j, err := m.admit(o)
	if err != nil {
		return Job{}, err
	}
	rep, err := m.launch(ctx, j, o)
	m.mu.Lock()
	j.starting = false
	m.mu.Unlock()
	switch {
	case err != nil:
		return m.abandon(o, err)
	case rep.PID == 0:
		return Job{}, &NotStarted{Message: rep.Message, Errno: syscall.Errno(rep.Errno)}
	}
	return m.Get(o.Caller, o.ID)
}

// admit makes room for a job and writes down what it is. From then on its id is taken.
func (m *Manager) admit(o Order) (*job, error) {
	if !validID(o.ID) {
		return nil, protocol.Errorf(protocol.CodeBadArgs, "the call's id doesn't fit a job")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.room(o.Caller.Principal); err != nil {
		return nil, err
	}
	j := &job{dir: filepath.Join(m.opt.Dir, o.ID), starting: true,
		meta: meta{JobID: o.ID, Name: o.Name, Command: o.Command, Caller: o.Caller, CreatedAt: m.opt.Now().UTC(), Boot: m.opt.Boot}}
	if err := os.Mkdir(j.dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate, Message: "this call has started a job already; job_list shows it"}
		}
		return nil, err
	}
	j.Folder = folderID(j.dir)
	if err := writeFile(j.dir, metaFile, j.meta); err != nil {
		return nil, errors.Join(err, os.RemoveAll(j.dir))
	}
	m.jobs[o.ID] = j
	return j, nil
}

// room tells why a principal may start no other job now. m.mu is held.
func (m *Manager) room(who string) error {
	running, own := 0, 0
	for _, j := range m.jobs {
		if m.check(j); j.end == nil {
			if running++; j.Caller.Principal == who {
				own++
			}
		}
	}
	full := func(reason, format string, args ...any) error {
		return &protocol.Error{Code: protocol.CodeRateLimited, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	most := m.opt.Limits
	switch {
	case running >= most.Running:
		return full(ReasonJobs, "%d jobs run on this host, as many as may at once (over all callers); nothing was started. Try again when one has ended, or end one with job_stop", running)
	case own >= share.Half(most.Running):
		return full(ReasonJobs, "%d jobs of yours run on this host, as many as one credential may have of the %d places; nothing was started. Try again when one has ended, or end one with job_stop", own, most.Running)
	}
	switch there := m.prune(); {
	case there.all >= most.Stored:
		return full(ReasonOutput, "the output of running jobs fills the %d MiB that this host keeps (over all callers); nothing was started. Try again when one has ended", most.Stored>>20)
	case there.running[who] >= share.Half(most.Stored):
		return full(ReasonOutput, "the output of your running jobs fills half of the %d MiB that this host keeps, as much as one credential's may; nothing was started. Try again when one has ended", most.Stored>>20)
	}
	return nil
}

// abandon ends a job whose supervisor was started and didn't report.
func (m *Manager) abandon(o Order, cause error) (Job, error) {
	m.log.Error("a job's supervisor didn't report", "job", o.ID, "err", cause)
	ctx, cancel := context.WithTimeout(context.Background(), abandonTime)
	defer cancel()
	job, _, err := m.Stop(ctx, o.Caller, o.ID, Stop{Signal: "KILL", Reason: "its start was given up"})
	if err != nil {
		return job, err
	}
	if j, nothing, err := m.Trace(func(id string) bool { return id == o.ID }); err == nil && nothing {
		return j, &NotStarted{Message: j.Detail}
	}
	return job, fmt.Errorf("%w: %w", ErrAbandoned, cause)
}

// ErrAbandoned says that a job may have started, and has been ended again.
var ErrAbandoned = errors.New("the job's start was given up, and it was ended")

// never writes down that a job's supervisor couldn't be started.
func (m *Manager) never(j *job, cause error) {
	e := end{State: Failed, Detail: "its supervisor couldn't be started: " + cause.Error(), At: m.opt.Now().UTC(), Never: true}
	if err := writeFile(j.dir, endFile, e); err != nil {
		m.log.Error("the failure of a job can't be written down", "job", j.JobID, "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	j.end = &e
}

// launch starts a job's supervisor and waits for its report.
func (m *Manager) launch(ctx context.Context, j *job, o Order) (report, error) {
	task, err := json.Marshal(spec{
		JobID: o.ID, Dir: j.dir, Path: []byte(o.Program.Path), Argv: blobs(o.Program.Argv), Line: []byte(o.Program.Line), Cwd: []byte(o.Program.Dir),
		Held: inherits, Env: blobs(slices.Concat(o.Program.Env, []string{mark + o.ID})), Stdin: []byte(o.Program.Stdin), TimeoutMS: o.Timeout.Milliseconds(), Quota: o.Quota,
	})
	if err != nil {
		return report{}, err
	}
	said, err := m.supervise(j, task)
	if err != nil {
		m.never(j, err)
		return report{Message: "its supervisor couldn't be started: " + err.Error()}, nil
	}
	timer := time.NewTimer(reportTime)
	defer timer.Stop()
	select {
	case r := <-said:
		return r.report, r.err
	case <-timer.C:
		return report{}, fmt.Errorf("no word of it within %s", reportTime)
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

type saying struct {
	report
	err error
}

// supervise starts a supervisor with this task. Its report comes in the channel.
func (m *Manager) supervise(j *job, task []byte) (<-chan saying, error) {
	log, err := os.OpenFile(filepath.Join(j.dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	childIn, feed, err := given(task)
	if err != nil {
		return nil, err
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		feed(false)
		return nil, err
	}
	defer childOut.Close()
	x := &exec.Cmd{Path: m.opt.Supervisor[0], Args: m.opt.Supervisor, Dir: j.dir, Stdin: childIn, Stdout: childOut, Stderr: log,
		Env: slices.Concat(m.opt.Env, []string{mark + j.JobID})}
	leave, err := detach(x, j.dir)
	if err == nil {
		err = launch(x)
		leave()
	}
	if err != nil {
		feed(false)
		return nil, errors.Join(err, out.Close())
	}
	said := make(chan saying, 1)
	go func() {
		feed(true)
		s := m.hear(j.JobID, out)
		_ = out.Close()
		said <- s
		_ = x.Wait() // it writes down itself how it ended
	}()
	return said, nil
}

// given makes a supervisor's input. Where the system has files in memory, all of the task is
// there before the supervisor is, which has it then though the agent dies at that moment.
// Elsewhere it comes by feed, which is called once the supervisor runs, or with false when it
// doesn't.
func given(task []byte) (childIn *os.File, feed func(bool), err error) {
	if f, err := inMemory(task); err == nil {
		return f, func(bool) {}, nil
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return childIn, func(runs bool) {
		if runs {
			_, _ = in.Write(task) // one that doesn't read it says so, or ends
		}
		_ = in.Close()
	}, nil
}

// hear reads a supervisor's report. A panic there says nothing of the job: it's as if no word
// had come.
func (m *Manager) hear(job string, out io.Reader) (s saying) {
	defer fault.Catch(func(p *fault.Panic) {
		m.broke("its supervisor's word", job)(p)
		s = saying{err: p}
	})
	b, err := io.ReadAll(io.LimitReader(out, 64<<10))
	if s.err = err; err == nil && len(b) == 0 {
		s.err = errors.New("it ended without a word; " + logFile + " in the job's folder says more")
	} else if err == nil {
		s.err = strict.Unmarshal(b, &s.report, strict.Limits{MaxBytes: 64 << 10})
	}
	return s
}

func blobs(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}
