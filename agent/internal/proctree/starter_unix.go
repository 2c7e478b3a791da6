//go:build linux || darwin

package proctree

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// self names this process among all of this boot: by its id, its start, and the space that
// the id counts in.
var self = sync.OnceValue(func() string {
	p, ok := look(os.Getpid())
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d-%d-%s", p.pid, p.start, pidSpace())
})

// named looks for the process of a name: it's there and lives, or seen is false where its id
// counts in a space that isn't this process's.
func named(name string) (p proc, lives, seen bool) {
	f := strings.SplitN(name, "-", 3)
	if len(f) != 3 {
		return proc{}, false, true
	}
	pid, err1 := strconv.Atoi(f[0])
	start, err2 := strconv.ParseUint(f[1], 10, 64)
	if err1 != nil || err2 != nil {
		return proc{}, false, true
	}
	if f[2] != pidSpace() {
		return proc{}, false, false
	}
	p, ok := look(pid)
	return p, ok && p.start == start && !p.dead, true
}

// mayLive tells that a starter lives, or is in a space into which this process doesn't see.
// One without a name was an agent from before there were any.
func mayLive(starter string) bool {
	_, lives, seen := named(starter)
	return lives || !seen
}

// Lives implements jobs.Processes.
func (Jobs) Lives(supervisor string) (pid int) {
	if p, lives, _ := named(supervisor); lives {
		return p.pid
	}
	return 0
}

// Tell implements jobs.Processes. The process is held before it's compared, so that a reused
// id isn't hit.
func (j Jobs) Tell(supervisor string) {
	pid := j.Lives(supervisor)
	if pid == 0 {
		return
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	if j.Lives(supervisor) == pid {
		_ = p.Signal(syscall.SIGTERM)
	}
	_ = p.Release()
}

// Supervisor implements jobs.Tree.
func (jobTree) Supervisor() string { return self() }
