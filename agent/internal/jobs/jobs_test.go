//go:build linux || darwin

package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/protocol"
)

const asSupervisor = "job-supervisor"

// TestMain is also the program that the jobs of these tests run under, and that others start.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asSupervisor {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := jobs.Supervise(ctx, os.Stdin, os.Stdout, capability.JobProcesses{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	killed(os.Args[1:])
	os.Exit(m.Run())
}

// rig is a manager that can be opened again on its folder, as by the next agent.
type rig struct {
	t    *testing.T
	opt  jobs.Options
	last int
	*jobs.Manager
}

func newRig(t *testing.T, l jobs.Limits) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, opt: jobs.Options{Dir: filepath.Join(t.TempDir(), "jobs"), Supervisor: []string{self, asSupervisor}, Env: []string{"PATH=" + os.Getenv("PATH")},
		Boot: "boot-1", Processes: capability.JobProcesses{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Limits: l}}
	r.open()
	t.Cleanup(func() {
		_, left := r.StopAll(context.Background(), jobs.Stop{Signal: "KILL", Reason: "the test is over"})
		if len(left) > 0 {
			t.Errorf("jobs are left: %+v", left)
		}
		r.Close()
		// The last supervisors may still be writing into their folders.
		eventually(t, "the supervisors are gone", func() bool { return len(r.supervisors()) == 0 })
	})
	return r
}

// open makes the manager anew from what is on disk.
func (r *rig) open() {
	r.t.Helper()
	m, err := jobs.New(r.opt)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Manager = m
}

// supervisors are the ids of the processes that hold a job's lock or log.
func (r *rig) supervisors() []int {
	var out []int
	links, _ := filepath.Glob("/proc/[0-9]*/fd/2")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, r.opt.Dir+"/") {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			out = append(out, pid)
		}
	}
	return out
}

// supervisorOf is the process that supervises a job.
func (r *rig) supervisorOf(id string) int {
	r.t.Helper()
	for _, pid := range r.supervisors() {
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid)); strings.Contains(to, id) {
			return pid
		}
	}
	r.t.Fatalf("job %s has no supervisor", id)
	return 0
}

func caller(principal string) protocol.Caller {
	return protocol.Caller{Principal: principal, User: "ann", Kind: "pat"}
}

func ann() protocol.Caller { return caller("pat:ann") }

// order is a job that runs a shell's command line.
func (r *rig) order(line string) jobs.Order {
	r.last++
	return jobs.Order{ID: fmt.Sprintf("job-%d", r.last), Command: line, Caller: ann(), Timeout: time.Minute, Quota: 1 << 20,
		Program: jobs.Program{Path: "/bin/sh", Argv: []string{"/bin/sh", "-c", line}, Dir: r.t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}}}
}

func (r *rig) start(o jobs.Order) jobs.Job {
	r.t.Helper()
	j, err := r.Start(r.t.Context(), o)
	if err != nil {
		r.t.Fatalf("%s: %v", o.Command, err)
	}
	return j
}

func (r *rig) get(id string) jobs.Job {
	r.t.Helper()
	j, err := r.Get(ann(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

// ended waits for a job's end.
func (r *rig) ended(id string) (j jobs.Job) {
	r.t.Helper()
	eventually(r.t, "job "+id+" ends", func() bool { j = r.get(id); return j.State != jobs.Running })
	return j
}

func (r *rig) output(id, stream string) string {
	r.t.Helper()
	o, err := r.Open(ann(), id, stream)
	if err != nil {
		r.t.Fatal(err)
	}
	defer o.Close()
	if o.File == nil {
		return ""
	}
	b, err := io.ReadAll(o.File)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func want(t *testing.T, j jobs.Job, state jobs.State, code int) {
	t.Helper()
	if j.State != state || j.ExitCode == nil || *j.ExitCode != code || j.EndedAt.Before(j.StartedAt) {
		t.Errorf("job %s (%s): %s, exit code %v, %q; want %s, %d", j.ID, j.Command, j.State, show(j.ExitCode), j.Detail, state, code)
	}
}

func show(code *int) string {
	if code == nil {
		return "unknown"
	}
	return strconv.Itoa(*code)
}

// eventually polls what other processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(b), ") Z ")
}

// number reads a process id that a job wrote.
func number(t *testing.T, path string) (pid int) {
	t.Helper()
	eventually(t, path+" is written", func() bool {
		b, err := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && strings.HasSuffix(string(b), "\n")
	})
	return pid
}

func TestHowAJobEnds(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	for line, w := range map[string]struct {
		state  jobs.State
		code   int
		signal string
	}{
		"echo out; echo err >&2; exit 0": {jobs.Done, 0, ""},
		"echo out; echo err >&2; exit 7": {jobs.Failed, 7, ""},
		"kill -SEGV $$":                  {jobs.Failed, 139, "SIGSEGV"},
	} {
		j := r.start(r.order(line))
		if j.PID == 0 || j.StartedAt.IsZero() {
			t.Errorf("%s: started as %+v", line, j)
		}
		e := r.ended(j.ID)
		want(t, e, w.state, w.code)
		if e.Signal != w.signal {
			t.Errorf("%s: signal %q", line, e.Signal)
		}
		if w.signal == "" && (r.output(j.ID, jobs.Stdout) != "out\n" || r.output(j.ID, jobs.Stderr) != "err\n" || e.Stdout.Total() != 4) {
			t.Errorf("%s: %q and %q, %+v", line, r.output(j.ID, jobs.Stdout), r.output(j.ID, jobs.Stderr), e.Stdout)
		}
	}
	if list := r.List(ann()); len(list) != 3 {
		t.Errorf("%d jobs are listed", len(list))
	}
}

// TestX13_AllThatWasPrintedIsKept: also what a program prints in its last instant, through a
// pipe that's full.
func TestX13_AllThatWasPrintedIsKept(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("seq 150000"))
	want(t, r.ended(j.ID), jobs.Done, 0)
	var b strings.Builder
	for i := range 150000 {
		fmt.Fprintln(&b, i+1)
	}
	if got := r.output(j.ID, jobs.Stdout); got != b.String() {
		t.Errorf("%d bytes of %d", len(got), b.Len())
	}
}

func TestAProgramThatCannotStart(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	o := r.order("x")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("no first line"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.Program.Path, o.Program.Argv = script, []string{script}
	_, err := r.Start(t.Context(), o)
	var refused *jobs.NotStarted
	if !errors.As(err, &refused) || !errors.Is(err, syscall.ENOEXEC) {
		t.Fatalf("got %v", err)
	}
	if j := r.get(o.ID); j.State != jobs.Failed || j.PID != 0 || !strings.Contains(j.Detail, "couldn't be started") {
		t.Errorf("%+v", j)
	}
	if _, err := r.Start(t.Context(), o); !hasCode(err, protocol.CodeConflict, "duplicate") {
		t.Errorf("the same call once more: %v", err)
	}
}

func hasCode(err error, code protocol.Code, reason string) bool {
	var pe *protocol.Error
	return errors.As(err, &pe) && pe.Code == code && pe.Reason == reason
}

// TestAJobOutlivesItsAgent: the next manager finds it running and reads its end.
func TestAJobOutlivesItsAgent(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	gate := filepath.Join(t.TempDir(), "gate")
	j := r.start(r.order("echo a; until [ -e " + gate + " ]; do sleep 0.05; done; echo b; exit 3"))
	r.open()
	if got := r.get(j.ID); got.State != jobs.Running || got.PID != j.PID {
		t.Errorf("after a restart: %+v", got)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, r.ended(j.ID), jobs.Failed, 3)
	r.open()
	want(t, r.get(j.ID), jobs.Failed, 3)
	if got := r.output(j.ID, jobs.Stdout); got != "a\nb\n" {
		t.Errorf("it printed %q", got)
	}
}

// TestX04_StopEndsTheWholeTree: also what ignores being asked, left the session, or begins
// meanwhile.
func TestX04_StopEndsTheWholeTree(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	dir := t.TempDir()
	j := r.start(r.order("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > " + dir + "/child; while :; do sleep 0.2; done' & echo $$ > " + dir + "/root; while :; do sleep 0.2; done"))
	root, child := number(t, dir+"/root"), number(t, dir+"/child")
	e, already, err := r.Stop(t.Context(), ann(), j.ID, jobs.Stop{Signal: "TERM", Grace: 300 * time.Millisecond, Reason: "enough"})
	if err != nil || already || e.State != jobs.Killed || e.Signal != "SIGKILL" || e.Detail != "enough" || len(e.Left) > 0 {
		t.Errorf("stopped: %+v, %v, %v", e, already, err)
	}
	if alive(root) || alive(child) {
		t.Errorf("still alive: %d %v, %d %v", root, alive(root), child, alive(child))
	}
	e, already, err = r.Stop(t.Context(), ann(), j.ID, jobs.Stop{Signal: "TERM"})
	if err != nil || !already || e.State != jobs.Killed {
		t.Errorf("stopped again: %+v, %v, %v", e, already, err)
	}
}

// TestStopIsAsked: a program may end by itself within the grace, and is killed all the same
// when a second order says so.
func TestStopIsAsked(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	ready := filepath.Join(t.TempDir(), "ready")
	polite := r.start(r.order("trap 'echo bye; exit 0' INT; echo $$ > " + ready + "; while :; do sleep 0.05; done"))
	number(t, ready)
	e, _, err := r.Stop(t.Context(), ann(), polite.ID, jobs.Stop{Signal: "INT", Grace: 30 * time.Second, Reason: "enough"})
	if err != nil || e.State != jobs.Killed || show(e.ExitCode) != "0" || r.output(polite.ID, jobs.Stdout) != "bye\n" {
		t.Errorf("%+v, %v", e, err)
	}

	ready += "2"
	asked := ready + "-asked"
	deaf := r.start(r.order("trap 'echo $$ > " + asked + "' TERM; echo $$ > " + ready + "; while :; do sleep 0.05; done"))
	number(t, ready)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, _, err := r.Stop(ctx, ann(), deaf.ID, jobs.Stop{Signal: "TERM", Grace: time.Hour}); !hasCode(err, protocol.CodeOutcomeUnknown, jobs.ReasonStillRunning) || e.State != jobs.Running {
		t.Errorf("a wait that ended before the job: %+v, %v", e, err)
	}
	number(t, asked)
	if e, _, err = r.Stop(t.Context(), ann(), deaf.ID, jobs.Stop{Signal: "KILL"}); err != nil || e.State != jobs.Killed {
		t.Errorf("killed: %+v, %v", e, err)
	}
}

func TestTimeLimit(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	o := r.order("echo early; exec sleep 600")
	o.Timeout = 500 * time.Millisecond
	j := r.ended(r.start(o).ID)
	if j.State != jobs.Killed || j.Signal != "SIGTERM" || !strings.Contains(j.Detail, "time limit of 500ms") || r.output(j.ID, jobs.Stdout) != "early\n" {
		t.Errorf("%+v", j)
	}
}

// TestAKilledSupervisorsJobIsLost: its processes die, and it's never running for ever.
func TestAKilledSupervisorsJobIsLost(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	dir := t.TempDir()
	// The second one has neither its session nor its environment: its cgroup alone tells.
	j := r.start(r.order("echo kept; env -i setsid sleep 600 & echo $! > " + dir + "/other; echo $$ > " + dir + "/root; sleep 600"))
	root, other := number(t, dir+"/root"), number(t, dir+"/other")
	defer func() { _ = syscall.Kill(other, syscall.SIGKILL) }()
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", other))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.supervisorOf(j.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := r.ended(j.ID)
	if e.State != jobs.Lost || e.ExitCode != nil || e.Detail == "" {
		t.Errorf("%+v", e)
	}
	r.Close()
	if alive(root) {
		t.Error("its program lives")
	}
	if strings.Contains(string(group), "/job-"+j.ID) && alive(other) {
		t.Error("what it had started lives, in its cgroup")
	}
	if got := r.output(j.ID, jobs.Stdout); got != "kept\n" {
		t.Errorf("its output: %q", got)
	}
	r.open()
	if e := r.get(j.ID); e.State != jobs.Lost {
		t.Errorf("later: %+v", e)
	}
}

// TestWatchNoticesWithoutBeingAsked: nobody has to look for a lost job's processes to die.
func TestWatchNoticesWithoutBeingAsked(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	ready := filepath.Join(t.TempDir(), "root")
	j := r.start(r.order("echo $$ > " + ready + "; sleep 600"))
	root := number(t, ready)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go r.Watch(ctx)
	if err := syscall.Kill(r.supervisorOf(j.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its program dies", func() bool { return !alive(root) })
}

// TestARestartOfTheHost: a job of an earlier boot is lost, and no process is touched for it:
// its ids are others' now.
func TestARestartOfTheHost(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	ready := filepath.Join(t.TempDir(), "root")
	j := r.start(r.order("echo $$ > " + ready + "; sleep 600"))
	root := number(t, ready)
	defer func() { _ = syscall.Kill(root, syscall.SIGKILL) }()
	if err := syscall.Kill(r.supervisorOf(j.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the supervisor is gone", func() bool { return len(r.supervisors()) == 0 })
	r.opt.Boot = "boot-2"
	r.open()
	if e := r.ended(j.ID); e.State != jobs.Lost || !strings.Contains(e.Detail, "restarted") {
		t.Errorf("%+v", e)
	}
	r.Close()
	if !alive(root) {
		t.Error("a process was killed for a job of an earlier boot")
	}
}

// TestAShutdownIsWrittenDown: a supervisor that's asked to end ends its job in order.
func TestAShutdownIsWrittenDown(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("sleep 600"))
	if err := syscall.Kill(r.supervisorOf(j.ID), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := r.ended(j.ID); e.State != jobs.Killed || !strings.Contains(e.Detail, "shutdown") || alive(j.PID) {
		t.Errorf("%+v", e)
	}
}

// TestAStoppedSupervisorTellsTheJobsOwnEnd: a job that ended by itself while its supervisor
// was stopped is told as it ended, though its time has passed and it was told to end since.
func TestAStoppedSupervisorTellsTheJobsOwnEnd(t *testing.T) {
	for _, order := range []bool{false, true} {
		r := newRig(t, jobs.Limits{})
		gate := filepath.Join(t.TempDir(), "gate")
		o := r.order("until [ -e " + gate + " ]; do sleep 0.05; done; exit 7")
		if o.Timeout = 3 * time.Second; order {
			o.Timeout = time.Hour
		}
		began := time.Now()
		j := r.start(o)
		supervisor := r.supervisorOf(j.ID)
		if err := syscall.Kill(supervisor, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the program has ended", func() bool { return !alive(j.PID) })
		stopped := make(chan bool, 1)
		if order {
			go func() {
				e, already, err := r.Stop(context.Background(), ann(), j.ID, jobs.Stop{Signal: "TERM"})
				stopped <- err == nil && already && e.State == jobs.Failed
			}()
			eventually(t, "the order", func() bool { _, err := os.Stat(filepath.Join(r.opt.Dir, j.ID, "stop.json")); return err == nil })
		} else {
			<-time.After(time.Until(began.Add(o.Timeout + time.Second))) // the supervisor's own clock must have passed it
			stopped <- true
		}
		if err := syscall.Kill(supervisor, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		want(t, r.ended(j.ID), jobs.Failed, 7)
		if !<-stopped {
			t.Error("job_stop says that it has ended it")
		}
	}
}

// TestABackgroundChildHoldsNothing: the job ends with its program; what it left isn't hurt,
// and its later output isn't kept.
func TestABackgroundChildHoldsNothing(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	dir := t.TempDir()
	j := r.start(r.order("(until [ -e " + dir + "/gate ]; do sleep 0.05; done; echo late; echo fine > " + dir + "/proof) & echo now"))
	want(t, r.ended(j.ID), jobs.Done, 0)
	if err := os.WriteFile(dir+"/gate", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child has printed", func() bool { _, err := os.Stat(dir + "/proof"); return err == nil })
	if got := r.output(j.ID, jobs.Stdout); got != "now\n" {
		t.Errorf("its output: %q", got)
	}
}

func TestQuota(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	gate := filepath.Join(t.TempDir(), "gate")
	o := r.order("yes | head -c 3000000; until [ -e " + gate + " ]; do sleep 0.05; done; echo end")
	o.Quota = 1000
	j := r.start(o)
	eventually(t, "what is dropped shows while it runs", func() bool { return r.get(j.ID).Stdout.Dropped == 2_999_000 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e := r.ended(j.ID)
	want(t, e, jobs.Done, 0)
	if e.Stdout != (jobs.Size{Kept: 1000, Dropped: 2_999_004}) || r.output(j.ID, jobs.Stdout) != strings.Repeat("y\n", 500) {
		t.Errorf("%+v", e.Stdout)
	}
}

func TestHowManyRun(t *testing.T) {
	r := newRig(t, jobs.Limits{Running: 4})
	first := r.start(r.order("sleep 600"))
	r.start(r.order("sleep 600"))
	// Half of the places are one credential's at most.
	if _, err := r.Start(t.Context(), r.order("true")); !hasCode(err, protocol.CodeRateLimited, jobs.ReasonJobs) || !strings.Contains(err.Error(), "one credential") {
		t.Errorf("a third of one's: %v", err)
	}
	for range 2 {
		o := r.order("sleep 600")
		o.Caller = caller("pat:bob")
		r.start(o)
	}
	o := r.order("true")
	o.Caller = caller("pat:cid") // all of them are the host's limit, whoever asks
	if _, err := r.Start(t.Context(), o); !hasCode(err, protocol.CodeRateLimited, jobs.ReasonJobs) || !strings.Contains(err.Error(), "all callers") {
		t.Errorf("a fifth: %v", err)
	}
	if _, _, err := r.Stop(t.Context(), ann(), first.ID, jobs.Stop{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), o); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestAFloodOfJobsLeavesOthers: of what has ended the oldest of whoever has the most goes.
func TestAFloodOfJobsLeavesOthers(t *testing.T) {
	r := newRig(t, jobs.Limits{Finished: 4, Stored: 3500})
	as := func(who string) string {
		o := r.order("yes | head -c 1000")
		o.Caller = caller(who)
		r.start(o)
		eventually(t, "the job ends", func() bool { j, err := r.Get(o.Caller, o.ID); return err == nil && j.State == jobs.Done })
		return o.ID
	}
	bobs := as("pat:bob")
	var flood []string
	for range 5 {
		flood = append(flood, as("pat:ann"))
	}
	r.open()
	o, err := r.Open(caller("pat:bob"), bobs, jobs.Stdout)
	o.Close()
	if err != nil || o.Size != 1000 {
		t.Errorf("another's job or its output was evicted by a flood: %v, %d bytes", err, o.Size)
	}
	var left []string
	for _, j := range r.List(ann()) {
		left = append(left, j.ID)
	}
	if slices.Sort(left); !slices.Equal(left, flood[2:]) {
		t.Errorf("of the flood %v are left, want the latest 3 of %v", left, flood)
	}
	if o, err := r.Open(ann(), flood[2], jobs.Stdout); !hasCode(err, protocol.CodeToolFailed, jobs.ReasonGone) {
		o.Close()
		t.Errorf("the oldest output of the flood: %v", err)
	}
}

// TestAnAdministratorListsAndStops: others' jobs, without reading what they print.
func TestAnAdministratorListsAndStops(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("echo secret; sleep 600"))
	eventually(t, "it has printed", func() bool { return r.get(j.ID).Stdout.Kept > 0 })
	root := protocol.Caller{Principal: "pat:root", Kind: "pat", Admin: true}
	if list := r.List(root); len(list) != 1 || list[0].Caller.Principal != "pat:ann" {
		t.Errorf("%+v", list)
	}
	if o, err := r.Open(root, j.ID, jobs.Stdout); !hasCode(err, protocol.CodeToolFailed, jobs.ReasonNotYours) {
		o.Close()
		t.Errorf("its output: %v", err)
	}
	if e, already, err := r.Stop(t.Context(), root, j.ID, jobs.Stop{Signal: "KILL"}); err != nil || already || e.State != jobs.Killed {
		t.Errorf("%+v, %v, %v", e, already, err)
	}
}

// TestOthersJobsArentThere: to list, read or stop.
func TestOthersJobsArentThere(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j := r.start(r.order("sleep 600"))
	bob := caller("pat:bob")
	_, missing := r.Get(bob, "job-999")
	for _, c := range []protocol.Caller{bob, {}, {Principal: "", Kind: "pat"}} {
		_, e1 := r.Get(c, j.ID)
		_, e2 := r.Open(c, j.ID, jobs.Stdout)
		_, _, e3 := r.Stop(t.Context(), c, j.ID, jobs.Stop{Signal: "KILL"})
		for _, err := range []error{e1, e2, e3} {
			if err == nil || err.Error() != missing.Error() {
				t.Errorf("%v: %v", c, err)
			}
		}
		if len(r.List(c)) != 0 {
			t.Errorf("%v sees it", c)
		}
	}
	if r.get(j.ID).State != jobs.Running {
		t.Error("it was stopped")
	}
	if got := r.List(protocol.Caller{Principal: "system:x", Kind: "system"}); len(got) != 1 {
		t.Error("the server itself doesn't see it")
	}
}

func TestStopPrincipal(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	a, b := r.start(r.order("sleep 600")), r.start(r.order("sleep 600"))
	o := r.order("sleep 600")
	o.Caller = caller("pat:bob")
	r.start(o)
	ended, left := r.StopPrincipal(t.Context(), "pat:ann", jobs.Stop{Signal: "TERM", Grace: 5 * time.Second, Reason: "revoked"})
	if ended != 2 || len(left) != 0 || r.get(a.ID).State != jobs.Killed || r.get(b.ID).Detail != "revoked" {
		t.Errorf("%d ended, %v left", ended, left)
	}
	if j, err := r.Get(o.Caller, o.ID); err != nil || j.State != jobs.Running {
		t.Errorf("another's: %+v, %v", j, err)
	}
}

// TestOldJobsGo: outputs after a day, jobs after a week, the oldest outputs when it's too
// much; none that runs.
func TestOldJobsGo(t *testing.T) {
	r := newRig(t, jobs.Limits{Stored: 2500})
	now := time.Now()
	r.opt.Now = func() time.Time { return now }
	running := r.start(r.order("yes | head -c 1000; sleep 600"))
	var ids []string
	for range 2 {
		j := r.start(r.order("yes | head -c 1000"))
		r.ended(j.ID)
		ids = append(ids, j.ID)
	}
	eventually(t, "the running one has printed", func() bool { return r.get(running.ID).Stdout.Kept == 1000 })
	gone := func(id string) bool {
		o, err := r.Open(ann(), id, jobs.Stdout)
		o.Close()
		return hasCode(err, protocol.CodeToolFailed, jobs.ReasonGone)
	}
	r.open()
	if !gone(ids[0]) || gone(ids[1]) || gone(running.ID) {
		t.Errorf("beyond the quota: %v %v, running %v", gone(ids[0]), gone(ids[1]), gone(running.ID))
	}
	want(t, r.get(ids[0]), jobs.Done, 0) // its status stays
	now = now.Add(25 * time.Hour)
	r.open()
	if !gone(ids[1]) || gone(running.ID) {
		t.Error("a day later")
	}
	now = now.Add(7 * 24 * time.Hour)
	r.open()
	if list := r.List(ann()); len(list) != 1 || list[0].ID != running.ID {
		t.Errorf("a week later: %+v", list)
	}
	if entries, err := os.ReadDir(r.opt.Dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder holds %v, %v", entries, err)
	}
}

// TestRunningOutputFillsTheHost: no new job then, and none that runs is hurt.
func TestRunningOutputFillsTheHost(t *testing.T) {
	r := newRig(t, jobs.Limits{Stored: 2000})
	j := r.start(r.order("yes | head -c 1000; sleep 600"))
	eventually(t, "it has printed", func() bool { return r.get(j.ID).Stdout.Kept == 1000 })
	o := r.order("true")
	o.Caller = caller("pat:bob")
	if r.start(o); t.Failed() {
		t.Error("one's running jobs leave another no room")
	}
	if _, err := r.Start(t.Context(), r.order("true")); !hasCode(err, protocol.CodeRateLimited, jobs.ReasonOutput) {
		t.Errorf("got %v", err)
	}
	if r.get(j.ID).State != jobs.Running {
		t.Error("it was ended")
	}
}

// TestFoldersArePrivate: commands and outputs may hold secrets.
func TestFoldersArePrivate(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	o := r.order("echo x")
	o.Program.Stdin = "s3cret-input"
	o.Program.Env = append(o.Program.Env, "TOKEN=s3cret-env")
	r.ended(r.start(o).ID)
	err := filepath.WalkDir(r.opt.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %04o", path, info.Mode().Perm())
		}
		if !d.IsDir() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if strings.Contains(string(b), "s3cret") {
				t.Errorf("%s holds a secret", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestASupervisorThatFails: nothing stays running.
func TestASupervisorThatFails(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	r.opt.Supervisor = []string{"/bin/sh", "-c", "exit 3"}
	r.open()
	o := r.order("true")
	var refused *jobs.NotStarted
	if _, err := r.Start(t.Context(), o); !errors.As(err, &refused) {
		t.Errorf("one that ends without a word: %v", err)
	}
	if j := r.get(o.ID); j.State != jobs.Failed {
		t.Errorf("%+v", j)
	}
	r.opt.Supervisor = []string{"/no/such/program"}
	r.open()
	o, refused = r.order("true"), nil
	if _, err := r.Start(t.Context(), o); !errors.As(err, &refused) {
		t.Errorf("one that can't be started: %v", err)
	}
	if j := r.get(o.ID); j.State != jobs.Failed {
		t.Errorf("%+v", j)
	}
}

// clearing is processes of which what a lost job left can't be cleared away without a panic.
type clearing struct{ jobs.Processes }

func (clearing) Clear(string, int, uint64) []int { panic("boom") }

// TestAFaultAtAJobsLoss: it costs that job's loss being written down, which the next agent does;
// the others go on.
func TestAFaultAtAJobsLoss(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	j, other := r.start(r.order("sleep 600")), r.start(r.order("sleep 600"))
	of := r.supervisorOf(j.ID)
	r.opt.Processes = clearing{capability.JobProcesses{}}
	r.open()
	if err := syscall.Kill(of, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := r.ended(j.ID); e.State != jobs.Lost {
		t.Errorf("%+v", e)
	}
	r.Close()
	if e := r.get(other.ID); e.State != jobs.Running {
		t.Errorf("the other one: %+v", e)
	}
	r.opt.Processes = capability.JobProcesses{}
	r.open()
	if e := r.ended(j.ID); e.State != jobs.Lost {
		t.Errorf("later: %+v", e)
	}
}
