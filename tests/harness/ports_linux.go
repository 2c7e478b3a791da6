package harness

import (
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// ports is one file for all test processes of a user; what's locked is the byte of a port's
// number. The locks end with the process, if nobody ends them before.
var ports = sync.OnceValues(func() (*os.File, error) {
	return os.OpenFile(filepath.Join(os.TempDir(), "drover-test-ports"), os.O_RDWR|os.O_CREATE, 0o600)
})

// claim takes a port for this process, beside whoever may listen there: a server that's being
// started again doesn't, and another package's tests, which run meanwhile, look for one. False
// when another process has it.
func claim(port int) bool { return lockPort(port, unix.F_WRLCK) }

// disclaim gives it back.
func disclaim(port int) { lockPort(port, unix.F_UNLCK) }

func lockPort(port int, kind int16) bool {
	f, err := ports()
	if err != nil {
		return true // another user's: there's nothing to agree by
	}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: int64(port), Len: 1}) == nil
}
