package identity

import (
	"os"

	"golang.org/x/sys/windows"
)

// tryHold takes the lock of an open file; false when another process has it.
func tryHold(f *os.File) bool {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{}) == nil
}
