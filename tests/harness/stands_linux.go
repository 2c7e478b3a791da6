package harness

import "golang.org/x/sys/unix"

// stands tells whether all threads of a child have stopped.
func stands(pid int) bool {
	var info unix.Siginfo
	// Without taking the news: who waits for its end isn't disturbed.
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil && err != unix.EINTR || info.Signo != 0
}
