package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
)

// Reasons of refusals.
const (
	// ReasonJobs: as many jobs run as may.
	ReasonJobs = "too_many_jobs"
	// ReasonOutput: the output of running jobs fills what all jobs together may keep.
	ReasonOutput = "job_output_full"
	// ReasonNoJob: there's no such job, or it's another's.
	ReasonNoJob = "no_such_job"
	// ReasonNotYours: an administrator sees the job, but its output is another's.
	ReasonNotYours = "not_yours"
	// ReasonGone: a job's output isn't kept any more.
	ReasonGone = "output_gone"
	// ReasonStillRunning: a job couldn't be seen to end.
	ReasonStillRunning = "still_running"
)

// Manager knows the jobs of one agent. Its methods may be called from any goroutine.
type Manager struct {
	opt Options
	log *slog.Logger

	mu   sync.Mutex
	jobs map[string]*job
	// burying are those that were found lost and are being cleared away.
	burying sync.WaitGroup
	letGo   []string // the old jobs that New removed
}

// job is one job in the manager's memory.
type job struct {
	meta
	dir      string
	copied   bool   // the folder isn't the one that it was started in
	away     string // its supervisor, which lives and works in that one
	told     string // why that one was told to end
	starting bool   // its supervisor hasn't reported yet
	began    *began
	end      *end
}

// New reads the jobs in o.Dir. One agent at a time may have a manager on it.
func New(o Options) (*Manager, error) {
	o.Limits.fill()
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Manager{opt: o, log: o.Log, jobs: map[string]*job{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of jobs: %w", err)
	}
	list, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("the folder of jobs: %w", err)
	}
	for _, e := range list {
		m.read(e.Name())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	there := slices.Collect(maps.Keys(m.jobs))
	for _, j := range m.jobs {
		m.check(j)
	}
	m.prune()
	m.letGo = slices.DeleteFunc(there, func(id string) bool { return m.jobs[id] != nil })
	return m, nil
}

// read takes a job's folder into memory. One without its description holds nothing that
// ever started: the agent died before.
func (m *Manager) read(name string) {
	j := &job{dir: filepath.Join(m.opt.Dir, name)}
	ok, err := readFile(j.dir, metaFile, &j.meta)
	switch {
	case err == nil && ok && j.JobID == name:
		j.copied = j.Folder != "" && j.Folder != folderID(j.dir)
		m.jobs[name] = j
	case err == nil && !ok && validID(name):
		if err := os.RemoveAll(j.dir); err != nil {
			m.log.Warn("a job's folder that was never used can't be removed", "job", name, "err", err)
		}
	default:
		m.log.Warn("a folder among the jobs can't be read; it's left alone", "job", name, "err", err)
	}
}

var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

func validID(id string) bool { return idForm.MatchString(id) }

// Close waits until what is being cleared away is. Jobs run on.
func (m *Manager) Close() { m.burying.Wait() }

// Watch notices jobs whose supervisor went down, and lets old ones go, until ctx ends.
func (m *Manager) Watch(ctx context.Context) {
	const every, pruneEvery = 2 * time.Second, 10 * time.Minute
	tick := time.NewTicker(every)
	defer tick.Stop()
	pruned := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := time.Since(pruned) > pruneEvery
		if due {
			pruned = time.Now()
		}
		m.lookAround(due)
	}
}

// lookAround looks once at each job. What fails about one leaves the others seen to.
func (m *Manager) lookAround(prune bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, j := range m.jobs {
		m.aside("the look at it", id, func() { m.check(j) })
	}
	if prune {
		m.aside("what old jobs left", "", func() { m.prune() })
	}
}

func (m *Manager) aside(what, job string, do func()) {
	defer fault.Catch(m.broke(what, job))
	do()
}

// check looks how a job stands. m.mu is held.
func (m *Manager) check(j *job) {
	if j.end != nil {
		return
	}
	if j.readBegan(); j.readEnd() {
		j.readBegan() // it may have started and ended between the two
		return
	}
	if j.starting {
		return
	}
	held, err := lock(j.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist): // somebody removed its folder
		m.log.Error("a job's folder is gone; if it runs, it can't be reached any more", "job", j.JobID)
		delete(m.jobs, j.JobID)
	case err != nil:
		m.log.Warn("can't see whether a job runs", "job", j.JobID, "err", err)
	case held == nil: // its supervisor lives
	case j.readEnd(), j.copied && m.isAway(j): // it ended meanwhile, or this isn't its supervisor's lock
		j.readBegan()
		_ = held.Close()
	default:
		m.bury(j, held)
	}
}

// hasOutput tells whether there's a file of the program's output, or can't be seen not to be.
func (j *job) hasOutput() bool {
	_, err := os.Lstat(filepath.Join(j.dir, Stdout))
	return !errors.Is(err, fs.ErrNotExist)
}

func (j *job) readBegan() {
	var b began
	if j.began != nil {
		return
	}
	if ok, err := readFile(j.dir, beganFile, &b); ok && err == nil {
		j.began = &b
	}
}

func (j *job) readEnd() bool {
	var e end
	ok, err := readFile(j.dir, endFile, &e)
	if ok && err == nil {
		j.end = &e
	}
	return j.end != nil
}

// isAway tells that the supervisor of a job in a copied folder lives. m.mu is held.
func (m *Manager) isAway(j *job) bool {
	j.away = ""
	if j.began != nil && j.Boot == m.opt.Boot && m.opt.Processes.Lives(j.began.By) != 0 {
		j.away = j.began.By
	}
	return j.away != ""
}

// bury writes a job off whose supervisor is gone, and kills what is left of it. held is its
// lock: whoever gets it after this finds the job ended. Of a job in a copied folder nothing is
// touched: what is left of it may be so on purpose, and belongs to the first folder's agent.
func (m *Manager) bury(j *job, held *os.File) {
	e := end{State: Lost, At: m.opt.Now().UTC(), Sizes: sizesOf(j.dir), Detail: "its supervisor went down; how far it came isn't known"}
	same := m.opt.Boot == j.Boot
	// The program's output has its files before it starts, and who comes for the lock after this
	// finds the job ended.
	never := same && j.Folder != "" && !j.copied && j.began == nil && !j.hasOutput()
	switch {
	case never:
		e.State, e.Detail = Failed, "its agent or its supervisor ended before the program was started; nothing ran"
	case !same:
		e.Detail = "the host was restarted while it ran; how far it came isn't known"
	case j.Folder == "": // a copy can't be told
		e.Detail = "its supervisor went down, or this state folder is a copy and it works in the first one; how far it came isn't known"
	case j.copied:
		e.Detail = "this state folder is a copy of the one that it was started in (or its file system was mounted anew), and no end of it is in here; how far it came, and whether it goes on, isn't known"
	}
	if j.told != "" {
		e.Detail = j.told + ", and its supervisor has ended since; " + e.Detail
	}
	if j.began == nil && !never {
		e.Detail += ", nor whether its program started"
	}
	shown := e
	j.end = &shown
	id, dir, b := j.JobID, j.dir, began{}
	if j.began != nil {
		b = *j.began
	}
	m.burying.Go(func() {
		defer held.Close()
		defer fault.Catch(m.broke("a job that was lost; the next agent finds it again", id))
		if same && !j.copied {
			e.Left = m.opt.Processes.Clear(id, b.PID, b.Start)
			e.Sizes = sizesOf(dir)
		}
		// Until it's written down another supervisor may still come.
		e.Never = never
		if err := writeFile(dir, endFile, e); err != nil {
			e.Never = false
			m.log.Error("a job's loss could not be written down; the next agent finds it again", "job", id, "err", err)
		}
		m.log.Warn("a job was lost", "job", id, "why", e.Detail, "left_behind", e.Left)
		m.mu.Lock()
		defer m.mu.Unlock()
		j.end = &e
	})
}

// broke is what becomes of a panic in what is done for one job: the others go on.
func (m *Manager) broke(what, job string) func(*fault.Panic) {
	return func(p *fault.Panic) {
		m.log.Error("a fault inside was kept to one job", "what", what, "job", job, "panic", p.What, "stack", p.Stack)
	}
}

// view shows a job as it stands. m.mu is held, and check was called.
func (m *Manager) view(j *job) Job {
	out := Job{ID: j.JobID, Name: j.Name, Command: j.Command, Caller: j.Caller, State: Running, StartedAt: j.CreatedAt}
	if j.began != nil {
		out.PID, out.StartedAt = j.began.PID, j.began.At
	}
	s := sizes{}
	if e := j.end; e != nil {
		out.State, out.ExitCode, out.Signal, out.Detail = e.State, e.ExitCode, e.Signal, e.Detail
		out.EndedAt, out.Left, s, out.Never = e.At, e.Left, e.Sizes, e.Never
	} else {
		s = sizesOf(j.dir)
	}
	if j.end == nil && j.away != "" {
		out.Away = true
		out.Detail = "it runs under another state folder, of which this one is a copy: what it has printed since then, and how it ends, isn't known here"
	}
	out.Stdout, out.Stderr = s.Stdout, s.Stderr
	return out
}

// may tells whether a caller sees and stops a job: its own; the server itself, and an
// administrator, all.
func may(c protocol.Caller, j *job) bool { return c.Admin || reads(c, j.Caller) }

// reads tells whether a caller reads a job's output: being an administrator isn't enough.
func reads(c, owner protocol.Caller) bool {
	return c.Kind == "system" || c.Principal != "" && c.Principal == owner.Principal
}

// List returns the jobs that the caller sees, the latest first.
func (m *Manager) List(c protocol.Caller) []Job {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Job
	for _, j := range m.jobs {
		if !may(c, j) {
			continue
		}
		if m.check(j); m.jobs[j.JobID] != nil {
			out = append(out, m.view(j))
		}
	}
	slices.SortFunc(out, func(a, b Job) int { return cmp.Or(b.StartedAt.Compare(a.StartedAt), cmp.Compare(b.ID, a.ID)) })
	return out
}

// Get returns one of the jobs that the caller sees. Another is like one that isn't there.
func (m *Manager) Get(c protocol.Caller, id string) (Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j, err := m.find(c, id)
	if err != nil {
		return Job{}, err
	}
	return m.view(j), nil
}

// find looks a job up and checks it. m.mu is held.
func (m *Manager) find(c protocol.Caller, id string) (*job, error) {
	if j := m.jobs[id]; j != nil && may(c, j) {
		if m.check(j); m.jobs[id] != nil {
			return j, nil
		}
	}
	return nil, protocol.Failf(ReasonNoJob, "no job of that id is yours on this host, or it ended more than %s ago; job_list shows which there are", hours(m.opt.Limits.Status))
}

func hours(d time.Duration) string {
	if n := int(d / (24 * time.Hour)); n > 1 {
		return fmt.Sprintf("%d days", n)
	}
	return fmt.Sprintf("%d hours", int(d/time.Hour))
}

// traceWait is how long a supervisor that lives may take to write down the start.
const traceWait = 3 * time.Second

// Trace finds the job whose id match tells, and that an earlier agent may not have seen the
// start of. nothing says that there's no such job, or none of which anything ran. It waits
// shortly for a start that is going on.
func (m *Manager) Trace(match func(jobID string) bool) (job Job, nothing bool, err error) {
	list, err := os.ReadDir(m.opt.Dir)
	if err != nil {
		return Job{}, false, err
	}
	at := slices.IndexFunc(list, func(e os.DirEntry) bool { return match(e.Name()) })
	if at < 0 { // what was let go ran, however old the clock makes it now
		return Job{}, !slices.ContainsFunc(m.letGo, match), nil
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for begin := time.Now(); ; <-look.C {
		job, err = m.Get(system(), list[at].Name())
		// An end without a start is one that's being written down, or doesn't tell.
		if err != nil || job.Never || job.PID != 0 || job.State != Running && job.State != Failed || time.Since(begin) > traceWait {
			return job, err == nil && job.Never, err
		}
	}
}

// forget removes a job that has ended. One whose loss is still being written down goes later.
func (m *Manager) forget(j *job) {
	if _, err := os.Stat(filepath.Join(j.dir, endFile)); err != nil && j.end.State == Lost {
		return
	}
	if err := os.RemoveAll(j.dir); err != nil {
		m.log.Warn("an old job can't be removed", "job", j.JobID, "err", err)
		return
	}
	delete(m.jobs, j.JobID)
}
