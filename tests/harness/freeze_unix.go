//go:build unix

package harness

import (
	"syscall"
	"time"
)

// Freeze stops the program where it is (SIGSTOP) until Thaw or its end. It returns once it
// stands: on a machine that has more to do, one thread may be due to take the signal while the
// others go on.
func (p *Process) Freeze() {
	_ = p.Cmd.Process.Signal(syscall.SIGSTOP)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !stands(p.Cmd.Process.Pid) {
		select {
		case <-p.Gone:
			return
		case <-again.C:
		}
	}
}

// Thaw lets a frozen program go on.
func (p *Process) Thaw() { _ = p.Cmd.Process.Signal(syscall.SIGCONT) }
