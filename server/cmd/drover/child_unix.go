//go:build unix && !linux

package main

import (
	"os"
	"syscall"
)

// childAttr leaves the agent in drover's group: a terminal's Ctrl-C and its closing reach
// both.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func terminate(p *os.Process) { _ = p.Signal(syscall.SIGTERM) } // gone already is fine
