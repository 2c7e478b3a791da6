package conformance

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	module = "github.com/drover-fleet/drover"
	// patience is how long a program that was just started may take to be useful.
	patience = 60 * time.Second
)

// server is a running drover serve with a PAT that may use every tool on every
// agent.
type server struct {
	url, pat string   // url without a path
	bin      string   // the folder of the two programs
	store    []string // the flags that name the store
}

// launch starts the drover serve of that folder on a free port with an empty
// store: the database at that URL, or SQLite in a new data folder when it's
// empty. It ends with the test.
func launch(t *testing.T, bin, database string) *server {
	t.Helper()
	s := &server{bin: bin, store: []string{"--data", t.TempDir()}}
	if database != "" {
		s.store = append(s.store, "--database-url", database)
	}
	addr := freeAddr(t)
	s.url = "http://" + addr
	gone := start(t, nil, s.program("drover"), append([]string{"serve", "--listen", addr}, s.store...)...)
	eventually(t, gone, "drover serve to be ready", func(ctx context.Context) error { return s.get(ctx, "/readyz") })
	s.pat = s.run(t, "pat", "create", "--name", "conformance", "--agents", "all", "--tools", "all")
	// A token that another process made is noticed a moment later.
	eventually(t, gone, "the token to be accepted", func(ctx context.Context) error { return s.get(ctx, "/api/v1/agents") })
	return s
}

// get tells whether a GET is answered with 200.
func (s *server) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	if s.pat != "" {
		req.Header.Set("Authorization", "Bearer "+s.pat)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(path + " says " + resp.Status)
	}
	return nil
}

// agent enrols an agent of that id, runs it and waits until a call reaches it.
func (s *server) agent(t *testing.T, id string) {
	t.Helper()
	token := s.run(t, "enroll", "create", "--agent-id", id)
	gone := start(t, []string{"DROVER_ENROLL_TOKEN=" + token},
		s.program("drover-agent"), "run", "--server", s.url, "--state", filepath.Join(t.TempDir(), "state"))
	eventually(t, gone, "agent "+id+" to answer", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, s.program("drover"), "call", "--url", s.url, "--agent", id, "diag_system")
		cmd.Env = append(environ(), "DROVER_PAT="+s.pat)
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.New(err.Error() + ": " + string(out))
		}
		return nil
	})
}

// run runs an administrative command of drover on the server's store and returns
// its standard output, trimmed.
func (s *server) run(t *testing.T, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), s.program("drover"), append(args, s.store...)...)
	cmd.Env = environ()
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("drover %s: %v\n%s", strings.Join(args[:2], " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

func (s *server) program(name string) string { return filepath.Join(s.bin, name) }

// build builds the two programs with the given build tags and returns their
// folder.
func build(t *testing.T, tags string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", tags, "-o", bin+string(filepath.Separator),
		module+"/server/cmd/drover", module+"/agent/cmd/drover-agent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// freeAddr returns a loopback address whose port was free a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a program until the test ends and shows what it wrote if the test
// failed. The channel is closed when the program has ended.
func start(t *testing.T, env []string, program string, args ...string) <-chan struct{} {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = cmd.Wait() // whoever needs it alive finds out by gone
	}()
	t.Cleanup(func() {
		<-gone
		if t.Failed() {
			wrote, _ := os.ReadFile(log.Name())
			t.Logf("%s %s wrote:\n%s", filepath.Base(program), args[0], tail(wrote, 8<<10))
		}
		log.Close()
	})
	return gone
}

// environ is this process's environment without Drover's own variables, so that
// a developer's server and PAT stay out of the tests.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DROVER_") })
}

func tail(b []byte, most int) []byte { return b[max(0, len(b)-most):] }

// eventually tries until it works, the program is gone or patience is over.
func eventually(t *testing.T, gone <-chan struct{}, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-gone:
			t.Fatalf("waiting for %s: the program has ended", what)
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}
