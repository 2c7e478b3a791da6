package main

import (
	"os"
	"syscall"
)

// childAttr puts the agent into a group of its own, so that a terminal's Ctrl-C reaches it
// through drover alone, and ends it with drover, however that ends.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // gone already is fine
