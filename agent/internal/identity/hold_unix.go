//go:build !windows

package identity

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryHold takes the lock of an open file; false when another process has it.
func tryHold(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
