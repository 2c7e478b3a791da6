package main

import (
	"os"
	"syscall"
)

// childAttr leaves the agent at drover's console: Ctrl-C and its closing reach both.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// terminate: Windows has no gentle signal for a process without a console of its own.
func terminate(p *os.Process) { _ = p.Kill() } // gone already is fine
