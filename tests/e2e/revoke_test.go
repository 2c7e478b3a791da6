package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// sleeper is a command that runs for minutes unless it's ended.
type sleeper struct {
	pid    int
	id     string // of its call
	answer <-chan harness.CallResult
}

// startSleeper calls a command that sleeps, over REST, and waits until it runs.
func startSleeper(t *testing.T, f interface {
	REST(token string) *harness.REST
}, token, agent string) *sleeper {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	answer := make(chan harness.CallResult, 1)
	rest := f.REST(token)
	go func() {
		_, res := rest.Call(agent, "shell_exec", map[string]any{"command": sleepCommand(file), "timeout_seconds": 600})
		answer <- res
	}()
	s := &sleeper{answer: answer}
	s.pid, s.id = sleeping(t, file)
	return s
}

// sleepCommand writes its process id and its call's id, and sleeps.
func sleepCommand(file string) string {
	return fmt.Sprintf(`echo $$ $DROVER_CALL_ID > %s.new; mv %s.new %s; sleep 600 & wait`, file, file, file)
}

// sleeping waits until the command of sleepCommand runs.
func sleeping(t *testing.T, file string) (pid int, call string) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "the command runs", func() bool { return read(t, file) != "" })
	w := strings.Fields(read(t, file))
	pid, err := strconv.Atoi(w[0])
	if err != nil || len(w) != 2 {
		t.Fatalf("%q: %v", w, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	return pid, w[1]
}

func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// dies fails the test unless the process is gone within limit.
func dies(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	harness.Eventually(t, limit, fmt.Sprintf("process %d is dead", pid), func() bool { return !running(pid) })
}

// ends fails the test unless the command is dead and its caller answered within limit.
func (s *sleeper) ends(t *testing.T, limit time.Duration) harness.CallResult {
	t.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	select {
	case res := <-s.answer:
		dies(t, s.pid, time.Second)
		return res
	case <-end.C:
		t.Fatalf("call %s isn't answered after %s; its process runs: %v", s.id, limit, running(s.pid))
	}
	return harness.CallResult{}
}

// stateOf is how a call stands, as an administrator sees it.
func stateOf(c *harness.Client, id string) string {
	var res harness.CallResult
	c.REST(c.Admin).JSON("GET", "/api/v1/calls/"+id, nil, &res)
	return res.State
}

// TestRevocation: within five seconds a revoked token is worth nothing, its MCP session is
// closed, and what ran with it is dead; a removed agent's calls are too. Others go on.
func TestRevocation(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("web-02")
	bystander, _ := f.PAT("bystander", "all", "all", false)
	other := startSleeper(t, f, bystander, "web-01")

	t.Run("token", func(t *testing.T) {
		token, id := f.PAT("doomed", "all", "all", false)
		session := f.MCP(token, harness.Legacy, nil)
		s := startSleeper(t, f, token, "web-01")
		began := time.Now()
		if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status/100 != 2 {
			t.Fatalf("revoke: %d %s", status, b)
		}
		if status, b := f.REST(token).Do("GET", "/api/v1/agents", ""); status != 401 {
			t.Errorf("after it was revoked: %d %s", status, b)
		}
		s.ends(t, 5*time.Second)
		if got := stateOf(&f.Client, s.id); got != "cancelled" {
			t.Errorf("its call is %s", got)
		}
		if _, err := session.ListTools(t.Context(), nil); err == nil {
			t.Error("its MCP session still answers")
		}
		closed(t, session, 5*time.Second)
		t.Logf("all of it took %s", time.Since(began))
	})
	t.Run("agent", func(t *testing.T) {
		s := startSleeper(t, f, bystander, "web-02")
		if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/agents/web-02", ""); status/100 != 2 {
			t.Fatalf("remove: %d %s", status, b)
		}
		res := s.ends(t, 5*time.Second)
		if res.State != "cancelled" && res.State != "outcome_unknown" {
			t.Errorf("its call is answered: %s %+v", res.State, res.Error)
		}
		if got := stateOf(&f.Client, s.id); got != res.State {
			t.Errorf("its call is recorded as %s and was answered as %s", got, res.State)
		}
		if _, res := f.REST(bystander).Call("web-02", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "unknown_agent" {
			t.Errorf("a removed agent: %+v %+v", res, res.Error)
		}
	})
	if !running(other.pid) {
		t.Error("a bystander's call was ended too")
	}
	if _, b := f.REST(bystander).Do("POST", "/api/v1/calls/"+other.id+"/cancel", ""); !strings.Contains(string(b), "cancelled") {
		t.Errorf("cancel: %s", b)
	}
	other.ends(t, 5*time.Second)
}

// closed fails the test unless the session ends within limit.
func closed(t *testing.T, s *mcp.ClientSession, limit time.Duration) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Errorf("the MCP session is open after %s", limit)
	}
}

// TestRevocationBesideTheServer: the same by drover pat revoke and agents remove on the
// data folder, beside the running server.
func TestRevocationBesideTheServer(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	d.Host("web-01")
	d.Host("web-02")
	token, id := d.PAT("doomed", "all", "all", false)
	first, second := startSleeper(t, d, token, "web-01"), startSleeper(t, d, d.Admin, "web-02")
	d.Run("pat", "revoke", id)
	harness.Eventually(t, 5*time.Second, "the token is dead", func() bool {
		status, _ := d.REST(token).Do("GET", "/api/v1/agents", "")
		return status == 401
	})
	first.ends(t, 5*time.Second)
	if got := stateOf(&d.Client, first.id); got != "cancelled" {
		t.Errorf("its call is %s", got)
	}
	d.Run("agents", "remove", "web-02")
	second.ends(t, 5*time.Second)
}

// TestCancelKillsTheProcess (G-07): call_cancel, from another session of the same
// principal, kills that call's processes and no others, also where JSON-RPC ids are the same.
func TestCancelKillsTheProcess(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, _ := f.PAT("shared", "all", "all", false)
	stranger, _ := f.PAT("stranger", "all", "all", false)
	for _, era := range harness.Eras() {
		t.Run(string(era), func(t *testing.T) {
			type run struct {
				pid    int
				call   string
				cancel context.CancelFunc
				done   chan error
			}
			start := func() run {
				session := f.MCP(token, era, nil)
				file := filepath.Join(t.TempDir(), "pid")
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() {
					res, err := session.CallTool(ctx, params("shell_exec", map[string]any{"agent_id": "web-01", "command": sleepCommand(file), "timeout_seconds": 600}))
					if err == nil {
						err = errors.New(textOf(res))
					}
					done <- err
				}()
				pid, call := sleeping(t, file)
				return run{pid, call, cancel, done}
			}
			first, second, third := start(), start(), start()
			asks := f.MCP(token, era, nil)
			if res := callTool(t, f.MCP(stranger, era, nil), "call_cancel", map[string]any{"call_id": first.call}); res == nil || !res.IsError || !strings.Contains(textOf(res), "not_found") {
				t.Errorf("a stranger's cancel: %v", textOf(res))
			}
			res := callTool(t, asks, "call_cancel", map[string]any{"call_id": first.call})
			if res == nil || !strings.Contains(textOf(res), "cancelled") {
				t.Fatalf("call_cancel: %+v", res)
			}
			dies(t, first.pid, time.Second) // dead before it said so, but for what /proc shows
			if err := <-first.done; !strings.Contains(err.Error(), "cancelled") {
				t.Errorf("the caller is told: %v", err)
			}
			second.cancel() // notifications/cancelled, or the closed response
			dies(t, second.pid, 10*time.Second)
			harness.Eventually(t, 10*time.Second, "the second call is cancelled", func() bool { return stateOf(&f.Client, second.call) == "cancelled" })
			if !running(third.pid) {
				t.Error("another session's command was killed")
			}
			callTool(t, asks, "call_cancel", map[string]any{"call_id": first.call}) // again: no harm
			if got := stateOf(&f.Client, first.call); got != "cancelled" {
				t.Errorf("the first call is %s", got)
			}
			callTool(t, asks, "call_cancel", map[string]any{"call_id": third.call})
			<-third.done
		})
	}
}
