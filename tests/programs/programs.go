// Package programs builds drover and drover-agent as they are released and runs them as
// their users do.
package programs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a running drover serve with its own data folder.
type Server struct {
	// URL is where it listens.
	URL string
	// Bin holds the programs, Data the server's data.
	Bin, Data string
}

// Serve builds both programs from the repository at root and runs the server on a free
// port with these flags besides.
func Serve(t *testing.T, root string, flags ...string) *Server {
	t.Helper()
	s := &Server{Bin: t.TempDir(), Data: t.TempDir()}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", s.Bin, "./server/cmd/drover", "./agent/cmd/drover-agent")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	args := append([]string{"serve", "--data", s.Data, "--listen", "127.0.0.1:0", "--log-format", "json"}, flags...)
	cmd := exec.Command(filepath.Join(s.Bin, "drover"), args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	Run(t, cmd)
	s.URL = served(t, stderr)
	return s
}

// served reads the log until the server says where it listens, and drops the rest of it.
func served(t *testing.T, log io.Reader) string {
	t.Helper()
	lines := bufio.NewScanner(log)
	var seen []string
	for lines.Scan() {
		var l struct{ Msg, URL string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.URL != "" {
			go func() { _, _ = io.Copy(io.Discard, log) }()
			return l.URL
		}
		seen = append(seen, lines.Text())
	}
	t.Fatalf("the server never said where it listens:\n%s", strings.Join(seen, "\n"))
	return ""
}

// Run starts a program and ends it with the test.
func Run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// Drover runs an administrative command beside the server and returns what it printed.
func (s *Server) Drover(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(s.Bin, "drover"), append(args, "--data", s.Data)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("drover %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// Agent enrols an agent at this URL of the server and runs it, behind prefix (a program
// that execs what follows it), with flags for both commands.
func (s *Server) Agent(t *testing.T, id, url string, prefix []string, flags ...string) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(s.Drover(t, "enroll", "create", "--agent-id", id)), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(s.Bin, "drover-agent")
	flags = append([]string{"--server", url, "--state", filepath.Join(t.TempDir(), "state")}, flags...)
	enrol := exec.Command(bin, append([]string{"enroll", "--token-file", token}, flags...)...)
	if out, err := enrol.CombinedOutput(); err != nil {
		t.Fatalf("enrol: %v\n%s", err, out)
	}
	args := append(append(append([]string{}, prefix...), bin, "run"), flags...)
	cmd := exec.Command(args[0], args[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", &log)
		}
	})
	Run(t, cmd)
}
