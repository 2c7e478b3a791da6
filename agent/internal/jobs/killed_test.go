//go:build linux || darwin

package jobs_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/jobs"
)

// asAgent runs an agent's manager alone that starts one job: its folder, the job's id and the
// supervisor's way follow.
const asAgent = "agent-that-is-killed"

// The ways of supervisors that kill the agent which started them.
const (
	killAndEnd   = "kill-and-end"   // as if the supervisor had died with it
	killAndStart = "kill-and-start" // before they read what they are to do
	killAndTell  = "kill-and-tell"  // before they say that the program runs
)

// killed runs this program as one of these; it returns if it's none of them.
func killed(args []string) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var err error
	switch {
	case len(args) == 4 && args[0] == asAgent:
		err = startOne(ctx, args[1], args[2], args[3])
	case len(args) != 1:
		return
	case args[0] == killAndEnd:
		killParent()
	case args[0] == killAndStart:
		killParent()
		err = jobs.Supervise(ctx, os.Stdin, os.Stdout, capability.JobProcesses{})
	case args[0] == killAndTell:
		err = jobs.Supervise(ctx, os.Stdin, lastWord{os.Stdout}, capability.JobProcesses{})
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// lastWord is written to an agent that dies first.
type lastWord struct{ io.WriteCloser }

func (w lastWord) Write(b []byte) (int, error) {
	killParent()
	return w.WriteCloser.Write(b)
}

func killParent() {
	parent := os.Getppid()
	_ = syscall.Kill(parent, syscall.SIGKILL)
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for os.Getppid() == parent {
		<-look.C
	}
}

func startOne(ctx context.Context, dir, id, way string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m, err := jobs.New(jobs.Options{Dir: dir, Supervisor: []string{self, way}, Env: []string{"PATH=" + os.Getenv("PATH")}, Boot: "boot-1",
		Processes: capability.JobProcesses{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = m.Start(ctx, jobs.Order{ID: id, Command: "wc", Caller: ann(), Timeout: time.Hour, Quota: 1 << 20, Program: jobs.Program{
		Path: "/bin/sh", Argv: []string{"sh", "-c", "wc -c; exec sleep 600"}, Dir: "/", Env: []string{"PATH=" + os.Getenv("PATH")}, Stdin: strings.Repeat("x", 300<<10)}})
	return err
}

// TestAFailureIsNoProofThatNothingRan: a program that failed did run, also where its start
// isn't written down, or its job was let go since.
func TestAFailureIsNoProofThatNothingRan(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	o := r.order("exit 3")
	r.start(o)
	r.ended(o.ID)
	match := func(name string) bool { return name == o.ID }
	if err := os.Remove(filepath.Join(r.opt.Dir, o.ID, "started.json")); err != nil {
		t.Fatal(err)
	}
	r.open()
	if j, nothing, err := r.Trace(match); j.State != jobs.Failed || j.PID != 0 || nothing || err != nil {
		t.Errorf("%+v; nothing ran: %t, %v", j, nothing, err)
	}
	r.opt.Now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	r.open()
	if _, err := r.Get(ann(), o.ID); err == nil {
		t.Error("a job of a year ago is there")
	}
	if _, nothing, err := r.Trace(match); nothing || err != nil {
		t.Errorf("let go: nothing ran: %t, %v", nothing, err)
	}
	missing := r.order("true")
	missing.Program.Path = "/nonexistent"
	if _, err := r.Start(t.Context(), missing); err == nil {
		t.Fatal("started")
	}
	if _, nothing, err := r.Trace(func(name string) bool { return name == missing.ID }); !nothing || err != nil {
		t.Errorf("what couldn't be started: nothing ran: %t, %v", nothing, err)
	}
}

// TestAnAgentThatIsKilledWhileAJobStarts: once its supervisor is there the job is started, and
// goes on, whatever becomes of the agent; if that died too, nothing ran, and the next agent
// says so.
func TestAnAgentThatIsKilledWhileAJobStarts(t *testing.T) {
	r := newRig(t, jobs.Limits{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i, way := range []string{killAndEnd, killAndStart, killAndTell} {
		if way == killAndStart && runtime.GOOS != "linux" {
			continue // its task comes through a pipe, which may be cut
		}
		id := fmt.Sprintf("job-%d", i)
		agent := exec.Command(self, asAgent, r.opt.Dir, id, way)
		agent.Stderr = t.Output()
		if err := agent.Run(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("%s: the agent: %v", way, err)
		}
		r.open()
		match := func(name string) bool { return name == id }
		if way == killAndEnd {
			j := r.ended(id) // it may live for a moment
			if _, nothing, err := r.Trace(match); j.State != jobs.Failed || j.PID != 0 || !strings.Contains(j.Detail, "nothing ran") || !nothing || err != nil {
				t.Errorf("%s: %+v; nothing ran: %t, %v", way, j, nothing, err)
			}
			continue
		}
		if j, nothing, err := r.Trace(match); j.State != jobs.Running || j.PID == 0 || nothing || err != nil {
			t.Errorf("%s: %+v; nothing ran: %t, %v", way, j, nothing, err)
			continue
		}
		eventually(t, "it has all of its input", func() bool { return strings.TrimSpace(r.output(id, jobs.Stdout)) == "307200" })
		if j, _, err := r.Stop(t.Context(), ann(), id, jobs.Stop{Signal: "KILL"}); err != nil || j.State != jobs.Killed {
			t.Errorf("%s: %+v, %v", way, j, err)
		}
	}
	if _, nothing, err := r.Trace(func(name string) bool { return name == "none" }); !nothing || err != nil {
		t.Errorf("of a job that isn't there: %t, %v", nothing, err)
	}
}
