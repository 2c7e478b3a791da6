//go:build unix

package harness

import "syscall"

// Freeze stops the program where it is (SIGSTOP) until Thaw or its end.
func (p *Process) Freeze() { _ = p.Cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen program go on.
func (p *Process) Thaw() { _ = p.Cmd.Process.Signal(syscall.SIGCONT) }
