//go:build !windows

package capability

import "syscall"

func reasonOfSystem(syscall.Errno) string { return "" }
