//go:build !windows

package capability

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

const (
	slashes  = "/"
	caseless = false
)

// programAt tells whether a program is there.
func programAt(path string, _ []string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", &os.PathError{Op: "exec", Path: path, Err: syscall.EACCES}
	case info.Mode()&0o111 == 0:
		return "", &os.PathError{Op: "exec", Path: path, Err: syscall.EACCES}
	}
	return path, nil
}

// exitOf writes down how a command ended by itself. A signal is an error that keeps the
// output.
func exitOf(state *os.ProcessState, out *capability.ProcessOut) error {
	ws, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() {
		out.ExitCode = state.ExitCode()
		return nil
	}
	out.ExitCode = 128 + int(ws.Signal())
	if out.Signal = unix.SignalName(ws.Signal()); out.Signal == "" {
		out.Signal = fmt.Sprintf("signal %d", int(ws.Signal()))
	}
	hint := ""
	if ws.Signal() == syscall.SIGKILL {
		hint = "; if nobody sent it, the system may have run out of memory (see dmesg)"
	}
	return protocol.Failf(protocol.ReasonSignal, "the command was ended by %s; what it printed is kept%s", out.Signal, hint)
}

// shellOf finds the shell for command lines.
func shellOf(env map[string]string) []string {
	list := []string{"PATH=" + env["PATH"]}
	for _, name := range []string{"bash", "sh"} {
		if path, err := lookProgram(name, "/", list); err == nil {
			return []string{path, "-c"}
		}
	}
	return []string{"/bin/sh", "-c"}
}

// shellCommand is a command line as the shell's one argument.
func (h *Host) shellCommand(line string, cmd *command) {
	cmd.path, cmd.argv = h.shell[0], []string{h.shell[0], h.shell[1], line}
}

func argvAllowed(string) error { return nil }

// pending tells that a pipe holds bytes that nobody has read yet.
func pending(pipe *os.File) bool {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return false // closed: it was read to its end
	}
	poll := []unix.PollFd{{Events: unix.POLLIN}}
	err = raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		_, _ = unix.Poll(poll, 0) // interrupted, it says no: whoever asks asks again
	})
	return err == nil && poll[0].Revents&unix.POLLIN != 0
}
