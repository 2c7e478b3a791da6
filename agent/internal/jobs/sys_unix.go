//go:build linux || darwin

package jobs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock of an open file; false when another process has it.
func tryLock(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }

// folderID names a folder among all of the host: it stays the same when it's moved or renamed,
// and a copy of it has another. "" when it can't be told.
func folderID(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%x-%x", st.Dev, st.Ino)
}

// detach gives a supervisor a session of its own, so that nothing that ends the agent's
// session reaches it, and its job's lock, so that an agent that comes next sees from its birth
// on that it lives. leave is called after its start.
func detach(x *exec.Cmd, dir string) (leave func(), err error) {
	held, err := lock(dir)
	switch {
	case err != nil:
		return nil, err
	case held == nil:
		return nil, errors.New("the job has a supervisor already")
	}
	x.SysProcAttr, x.ExtraFiles = &syscall.SysProcAttr{Setsid: true}, []*os.File{held}
	return func() { _ = held.Close() }, nil
}

// inherits tells that a supervisor has its job's lock from the agent, as inherited.
const inherits = true

// inherited is the lock that detach gave. The program mustn't have it, which may outlive its
// supervisor.
func inherited() (*os.File, error) {
	const first = 3 // of ExtraFiles
	syscall.CloseOnExec(first)
	f := os.NewFile(first, lockFile)
	if _, err := f.Stat(); err != nil {
		return nil, err
	}
	return f, nil
}

// launch starts a supervisor.
func launch(x *exec.Cmd) error { return x.Start() }

// pipeMost is more than any pipe holds.
const pipeMost = 2 << 20

// readRest hands what is in a pipe now to sink, without waiting for more. It's called after a
// read was broken off by its deadline.
func readRest(f *os.File, sink func([]byte), buf []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < pipeMost; {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf) // -1 when there's nothing now
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		sink(buf[:n])
		total += n
	}
}
