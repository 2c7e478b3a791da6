package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatCannotBeServedMakesNothing: what the command line alone, or an address that isn't this
// machine's, rules out is said before there's a data folder.
func TestWhatCannotBeServedMakesNothing(t *testing.T) {
	bin := programs(t)
	serve, dev := []string{"serve"}, []string{"dev"}
	both := [][]string{serve, dev}
	for _, c := range []struct {
		name     string
		commands [][]string
		args     []string
		want     string
		code     int
	}{
		{"no port", both, []string{"--listen", "here"}, "--listen must be HOST:PORT", 2},
		{"no such port", both, []string{"--listen", "127.0.0.1:99999"}, "--listen must be HOST:PORT", 2},
		{"another machine's address", both, []string{"--listen", "192.0.2.1:0"}, "can't listen on 192.0.2.1:0", 1},
		{"no machine", both, []string{"--listen", "no.such.invalid:0"}, "can't listen on no.such.invalid:0", 1},
		{"a level", both, []string{"--listen", "127.0.0.1:0", "--log-level", "loud"}, "log level", 2},
		{"an id", [][]string{dev}, []string{"--listen", "127.0.0.1:0", "--agent-id", "Web 01"}, "an agent id has", 2},
		{"a database", [][]string{serve}, []string{"--listen", "127.0.0.1:0", "--database-url", "postgres://[::1"}, "--database-url", 2},
		{"NATS without a database", [][]string{serve}, []string{"--listen", "127.0.0.1:0", "--nats-url", "nats://127.0.0.1:4222"}, "--database-url", 2},
		{"not NATS", [][]string{serve}, []string{"--listen", "127.0.0.1:0", "--database-url", "postgres://127.0.0.1/none", "--nats-url", "http://127.0.0.1:4222"}, "--nats-url must be", 2},
		{"not a URL", [][]string{serve}, []string{"--listen", "127.0.0.1:0", "--public-url", "drover.example.org"}, "--public-url", 2},
	} {
		for _, command := range c.commands {
			t.Run(command[0]+"/"+c.name, func(t *testing.T) {
				data := filepath.Join(t.TempDir(), "data")
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "drover"), append(append(command, "--data", data), c.args...)...)
				out, err := cmd.CombinedOutput()
				if err == nil || cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
					t.Errorf("%v, want %d and %q: %s", err, c.code, c.want, out)
				}
				if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the data folder: %v", err)
				}
			})
		}
	}
}
