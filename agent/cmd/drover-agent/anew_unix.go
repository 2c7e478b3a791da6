//go:build !windows

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// startAnew replaces this process by itself without the token in its arguments and
// environment: what a process was started with stays readable, to every command that the
// agent runs and on the command line's part to every user, and can't be taken back
// otherwise. The token goes over in a pipe; it's short enough to fit whole.
func startAnew(token string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("hide the token: %w", err)
	}
	if _, err := w.WriteString(token); err != nil {
		return fmt.Errorf("hide the token: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("hide the token: %w", err)
	}
	fd, err := unix.Dup(int(r.Fd())) // a copy lives on through exec
	if err != nil {
		return fmt.Errorf("hide the token: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("hide the token: %w", err)
	}
	args := append(withoutToken(os.Args), "--token-fd", strconv.Itoa(fd))
	return fmt.Errorf("hide the token: %w", unix.Exec(self, args, os.Environ()))
}

// withoutToken cuts the token's flag out of a command line.
func withoutToken(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--token":
			i++
		case strings.HasPrefix(args[i], "--token="):
		default:
			out = append(out, args[i])
		}
	}
	return out
}
