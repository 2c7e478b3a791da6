package capability_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/testenv"
)

// cgroups returns the folder of this process's own cgroup, version 2.
func cgroups(t testing.TB) string {
	t.Helper()
	dir := ""
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		for line := range strings.Lines(readFile(t, "/proc/self/cgroup")) {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
			if _, err := os.Stat(mount + path + "/cgroup.procs"); ok && err == nil {
				dir = mount + path
			}
		}
	}
	if dir != "" {
		try := filepath.Join(dir, "test-of-drover")
		if err := os.Mkdir(try, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			dir = ""
		}
		_ = os.Remove(try)
	}
	testenv.Require(t, dir != "", "cgroup version 2 isn't mounted, or this user may not make cgroups below its own")
	return dir
}

// groupsOf lists the folders in which a process keeps its commands' cgroups.
func groupsOf(t testing.TB, pid int) []string {
	t.Helper()
	list, err := filepath.Glob(fmt.Sprintf("%s/drover-%d-*", cgroups(t), pid))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// hidden starts what nothing but a cgroup still knows: in a session of its own, its parents
// gone, its environment cleared.
const hidden = `(env -i setsid setsid sh -c 'echo $$; exec sleep 4246' &) ; sleep 0.2; `

func TestX04_WhatLeftSessionParentsAndEnvironmentDiesToo(t *testing.T) {
	cgroups(t)
	r := newRig(t)
	for name, end := range map[string]string{"asked": "", "deaf to TERM": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, fault := shell(t, r, args{"command": end + hidden + "sleep 4247", "timeout_seconds": 1})
			wantFault(t, fault, protocol.CodeTimedOut, "")
			list := pids(t, out.Stdout)
			if len(list) != 1 || len(out.Left) != 0 {
				t.Fatalf("got %+v", out)
			}
			if alive(list[0]) {
				t.Errorf("%d is alive", list[0])
				_ = syscall.Kill(list[0], syscall.SIGKILL)
			}
		})
	}
}

// A script whose command is killed doesn't begin its next one: what it says of itself, that all
// was killed, would be true and too late.
func TestAKilledScriptDoesNotGoOn(t *testing.T) {
	r, next := newRig(t), filepath.Join(t.TempDir(), "next")
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			_, fault := shell(t, r, args{"command": "bash -c 'sleep 60; echo inner >> " + next + "'; echo outer >> " + next, "timeout_seconds": 2})
			wantFault(t, fault, protocol.CodeTimedOut, "")
		})
	}
	wg.Wait()
	if b, err := os.ReadFile(next); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("some went on: %q %v", b, err)
	}
}

// A cgroup holds a process as long as it lives, and no longer.
func TestCgroupsStayUntilTheyAreEmpty(t *testing.T) {
	cgroups(t)
	before := groupsOf(t, os.Getpid())
	r := newRig(t)
	sh(t, r, "true")
	mine := slices.DeleteFunc(groupsOf(t, os.Getpid()), func(dir string) bool { return slices.Contains(before, dir) })
	if len(mine) != 1 {
		t.Fatalf("an agent has %d folders of cgroups: %v", len(mine), mine)
	}
	groups := func() []string {
		list, err := filepath.Glob(mine[0] + "/call-*")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	eventually(t, "the end of an ended command's cgroup", func() bool { return len(groups()) == 0 })
	var child int
	within(t, 5*time.Second, "a command with a background child", func() {
		child = pids(t, sh(t, r, "mkdir "+mine[0]+"/call-*/inner; sleep 60 >/dev/null 2>&1 & echo $!").Stdout)[0]
	})
	sh(t, r, "true")
	eventually(t, "one cgroup alone, that of the background child", func() bool { return len(groups()) == 1 })
	if !alive(child) {
		t.Error("it isn't alive")
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child's end", func() bool { return !alive(child) })
	r.host.Close()
	if list := groups(); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if _, err := os.Stat(mine[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

// A cgroup that can't take processes is no reason to run no commands.
func TestCommandsRunWhereCgroupsStopWorking(t *testing.T) {
	cgroups(t)
	before := groupsOf(t, os.Getpid())
	r := newRig(t)
	for _, dir := range groupsOf(t, os.Getpid()) {
		if !slices.Contains(before, dir) {
			// Cgroups below are invalid from now on.
			writeFile(t, dir+"/cgroup.type", "threaded")
		}
	}
	if out := sh(t, r, "cat /proc/self/cgroup"); strings.Contains(out.Stdout, "/call-") || out.ExitCode != 0 {
		t.Errorf("got %+v", out)
	}
	r.host.Close()
	if out := sh(t, r, "cat /proc/self/cgroup"); !strings.Contains(out.Stdout, "/call-") {
		t.Errorf("after the folder was lost: %+v", out)
	}
}

// Without cgroups trees are found by parents, session and environment.
func TestX04_TreesDieWithoutCgroups(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can become another user")
	// The other user makes its folders in this test's own, as it may not be allowed to elsewhere.
	if err := os.Chmod(filepath.Dir(t.TempDir()), 0o777); err != nil {
		t.Fatal(err)
	}
	var r *rig
	asNobody(t, func() *protocol.Error { r = newRig(t); return nil })
	line := `grep ^0 /proc/self/cgroup >&2; (setsid sh -c 'echo $$; exec sleep 4248' &) ; env -i setsid sleep 4249 & echo $!; sleep 4250`
	out, fault := shell(t, r, args{"command": line, "timeout_seconds": 1})
	wantFault(t, fault, protocol.CodeTimedOut, "")
	if strings.Contains(out.Stderr, "/call-") || len(pids(t, out.Stdout)) != 2 {
		t.Errorf("got %+v", out)
	}
	for _, pid := range pids(t, out.Stdout) {
		if alive(pid) {
			t.Errorf("%d is alive", pid)
		}
	}
}

// agentThatDies runs this test program as an agent with one call and kills it.
func agentThatDies(t *testing.T, command string) (callID string, printed []int) {
	t.Helper()
	dir := t.TempDir()
	x := exec.Command(os.Args[0], "-test.run=^TestAgentForOneCall$")
	x.Env = append(os.Environ(), "TEST_AGENT_CALL="+command, "TEST_AGENT_DIR="+dir)
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the call's start", func() bool { b, _ := os.ReadFile(dir + "/pids"); return strings.Count(string(b), "\n") >= 2 })
	_ = x.Process.Kill()
	_ = x.Wait()
	return "call-" + strconv.Itoa(x.Process.Pid) + "-1", pids(t, readFile(t, dir+"/pids"))
}

// A command that ended by itself while its agent was stopped, or its host asleep, is told as
// it ended, though its time has passed by then, too.
func TestAStoppedAgentTellsTheCommandsOwnEnd(t *testing.T) {
	for round := range 3 {
		dir := t.TempDir()
		x := exec.Command(os.Args[0], "-test.run=^TestAgentForOneCall$")
		x.Env = append(os.Environ(), "TEST_AGENT_CALL=echo $$ >$DIR/pids; until [ -e $DIR/gate ]; do sleep 0.02; done; exit 7", "TEST_AGENT_DIR="+dir, "TEST_AGENT_TIMEOUT=3")
		if err := x.Start(); err != nil {
			t.Fatal(err)
		}
		timeout := time.Now().Add(3 * time.Second)
		command := 0
		eventually(t, "the command's start", func() bool {
			b, _ := os.ReadFile(dir + "/pids")
			command, _ = strconv.Atoi(strings.TrimSpace(string(b)))
			return strings.HasSuffix(string(b), "\n")
		})
		if err := x.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir+"/gate", "")
		eventually(t, "the command's end", func() bool { return !alive(command) })
		<-time.After(time.Until(timeout) + 2*time.Second) // the process's own clock must have passed it
		if err := x.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := x.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := readFile(t, dir+"/response"); !strings.Contains(got, `"exit_code":7`) || strings.Contains(got, "timed_out") {
			t.Errorf("round %d: %s", round, got)
		}
	}
}

// TestAgentForOneCall is agentThatDies's inside.
func TestAgentForOneCall(t *testing.T) {
	command := os.Getenv("TEST_AGENT_CALL")
	if command == "" {
		return
	}
	dir, timeout := os.Getenv("TEST_AGENT_DIR"), 600
	if s := os.Getenv("TEST_AGENT_TIMEOUT"); s != "" {
		timeout, _ = strconv.Atoi(s)
	}
	r := newRig(t)
	resp := r.Handle(context.Background(), r.request(t, "shell_exec", args{"command": command, "timeout_seconds": timeout, "env": args{"DIR": dir}}), mux.Detached(func(string) {}))
	writeFile(t, dir+"/response", fmt.Sprintf("%s %v", resp.Result, resp.Error))
}

func TestLeftoversOfADeadAgentAreKilledByCall(t *testing.T) {
	line := `echo $$ >>$DIR/pids; (setsid sh -c 'echo $$ >>$DIR/pids; exec sleep 4251' &); ` +
		`trap '' TERM; while :; do sleep 1; done`
	id, list := agentThatDies(t, line)
	other, others := agentThatDies(t, line)
	defer func() {
		for _, pid := range others {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	if killed, _ := proctree.KillLeftovers(func(string) bool { return false }); len(killed) != 0 {
		t.Errorf("killed without a match: %v", killed)
	}
	// A job was started by a call, but lives by itself.
	job := exec.Command("sleep", "4252")
	job.Env = []string{"DROVER_CALL_ID=" + id, "DROVER_JOB_ID=j"}
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = job.Process.Kill(); _ = job.Wait() }()
	killed, _ := proctree.KillLeftovers(func(callID string) bool { return callID == id })
	for _, pid := range list {
		if alive(pid) || !slices.Contains(killed, pid) {
			t.Errorf("%d of %v: alive %v, killed %v", pid, list, alive(pid), killed)
		}
	}
	for _, pid := range append(others, job.Process.Pid) {
		if !alive(pid) {
			t.Errorf("%d of call %s or of a job is dead", pid, other)
		}
	}
}

// What hid from everything but its cgroup is found by that after the agent's end; then the
// next agent removes the cgroups.
func TestLeftoversAreFoundByTheirCgroup(t *testing.T) {
	own := cgroups(t)
	id, list := agentThatDies(t, `echo $$ >>$DIR/pids; (env -i DIR=$DIR setsid setsid sh -c 'echo $$ >>$DIR/pids; exec sleep 4253' &); sleep 4254`)
	newRig(t).host.Close()
	dead := func() []string { list, _ := filepath.Glob(own + "/drover-*/call-" + id); return list }
	if len(dead()) != 1 {
		t.Errorf("a cgroup in which something lives is gone")
	}
	proctree.KillLeftovers(func(callID string) bool { return callID == id })
	for _, pid := range list {
		if alive(pid) {
			t.Errorf("%d is alive", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	newRig(t).host.Close()
	if len(dead()) != 0 {
		t.Errorf("left: %v", dead())
	}
}

// TestARunningCommandHoldsNoThread: each would cost memory, and one more hand-over at
// the command's end.
func TestARunningCommandHoldsNoThread(t *testing.T) {
	held := func() (n int) {
		tasks, err := filepath.Glob("/proc/self/task/*/syscall")
		testenv.Require(t, err == nil && len(tasks) > 0, "the system doesn't tell what threads wait for (/proc/self/task/*/syscall)")
		for _, task := range tasks {
			b, _ := os.ReadFile(task) // a thread may have ended
			if call, _, _ := strings.Cut(string(b), " "); call == strconv.Itoa(unix.SYS_WAITID) || call == strconv.Itoa(unix.SYS_WAIT4) {
				n++
			}
		}
		return n
	}
	r := newRig(t)
	dir := t.TempDir()
	const many = 8
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			out, fault := shell(t, r, args{"command": fmt.Sprintf("echo > %s/%d; until [ -e %s/go ]; do sleep 0.02; done; exit %d", dir, i, dir, i)})
			if fault != nil || out.ExitCode != i {
				t.Errorf("command %d: %+v %v", i, out, fault)
			}
		})
	}
	eventually(t, "all commands run", func() bool { return len(names(t, dir)) == many })
	eventually(t, "a look at which no thread waits for a command", func() bool { return held() == 0 })
	writeFile(t, dir+"/go", "")
	wg.Wait()
}
