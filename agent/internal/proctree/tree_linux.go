package proctree

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// over tells that the command has ended, whether it was waited for yet or not. Its entry in
// the table isn't asked: that's a zombie's also when the first of several threads has ended.
func (t *Tree) over() bool {
	var info unix.Siginfo
	err := unix.EINTR
	for err == unix.EINTR {
		err, _ = unix.Waitid(unix.P_PID, t.root, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil).(unix.Errno)
	}
	return err == unix.ECHILD || err == 0 && info.Signo != 0
}

// processes reads the system's table.
func processes() map[int]proc {
	out := map[int]proc{}
	dir, err := os.Open("/proc")
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := look(pid); ok {
				out[pid] = p
			}
		}
	}
	return out
}

// look reads one process; false when there's none of that id.
func look(pid int) (proc, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	// The name, in parentheses, may hold anything; the fields after it don't.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return proc{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return proc{}, false
	}
	num := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	start, _ := strconv.ParseUint(string(f[19]), 10, 64)
	dead := f[0][0] == 'Z' || f[0][0] == 'X'
	return proc{pid: pid, ppid: num(1), pgrp: num(2), sid: num(3), start: start, dead: dead}, true
}

// environ reads a process's environment as it began; nil when it can't be read.
func environ(pid int) []byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return b
}
