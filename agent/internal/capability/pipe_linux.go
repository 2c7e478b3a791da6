package capability

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// outPipe makes a pipe for what a command prints. Of os.Pipe's, the runtime watches both ends,
// and the command's, which is ready at once, wakes a thread for nothing.
func outPipe() (ours, childs *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(p[0]), unix.Close(p[1]))
	}
	return os.NewFile(uintptr(p[0]), "|0"), os.NewFile(uintptr(p[1]), "|1"), nil
}

// noInput opens what an empty standard input is. The runtime would try in vain to watch it.
func noInput() (*os.File, error) {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}
