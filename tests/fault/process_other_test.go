//go:build !linux

package fault_test

import "os/exec"

// processAlive tells that a process runs.
func processAlive(pid string) bool { return exec.Command("kill", "-0", pid).Run() == nil }
