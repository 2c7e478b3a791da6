//go:build !windows

package filelock

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes the lock of an open file; false when another process has it.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK || err == unix.EINTR {
		return false, nil
	}
	return err == nil, err
}
