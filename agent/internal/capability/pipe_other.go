//go:build !linux

package capability

import "os"

// outPipe makes a pipe for what a command prints.
func outPipe() (ours, childs *os.File, err error) { return os.Pipe() }

// noInput opens what an empty standard input is.
func noInput() (*os.File, error) { return os.Open(os.DevNull) }
