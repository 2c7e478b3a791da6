package proctree

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"

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

// AwaitEnd returns when the command has ended, which it leaves to be waited for, or when the
// kernel (before 5.10) can only be asked by a wait: that holds a thread for as long as it lasts.
func (t *Tree) AwaitEnd() {
	fd, err := unix.PidfdOpen(t.root, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	woken := false
	_ = raw.Read(func(uintptr) bool {
		was := woken
		woken = true
		return was || t.over()
	})
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
	var room [2 << 10]byte // it's one line of at most 52 numbers and a name
	b, err := readOnce("/proc/"+strconv.Itoa(pid)+"/stat", room[:])
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

// readOnce reads what fits into room. Every call does this, so it does without what the runtime
// adds for files that can be waited for.
func readOnce(path string, room []byte) ([]byte, error) {
	fd, err := uninterrupted(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := uninterrupted(func() (int, error) { return unix.Read(fd, room) })
	if err != nil {
		return nil, err
	}
	return room[:n], nil
}

func uninterrupted(do func() (int, error)) (int, error) {
	for {
		if n, err := do(); err != unix.EINTR {
			return n, err
		}
	}
}

// pidSpace names the space that process ids count in: a container has its own.
var pidSpace = sync.OnceValue(func() string {
	to, _ := os.Readlink("/proc/self/ns/pid")
	return strings.Trim(strings.TrimPrefix(to, "pid:"), "[]")
})

// environ reads a process's environment as it began; nil when it can't be read.
func environ(pid int) []byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return b
}
