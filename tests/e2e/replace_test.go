//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// enrolling is a host whose enrolment is replaced.
type enrolling struct {
	t           *testing.T
	d           *harness.Deployment
	data, state string
}

func (h *enrolling) run(env ...string) *harness.Process {
	return harness.Start(h.t, env, h.d.Programs.Path("drover-agent"), "run", "--state", h.state)
}

// serves demands that the folder's agent can be called, and ends it.
func (h *enrolling) serves(what string) {
	h.t.Helper()
	p := h.run()
	logged(h.t, p, "msg=connected")
	works(h.t, h.d, "web-01")
	p.Stop()
	h.d.WaitState("web-01", "offline")
	if h.t.Failed() {
		h.t.Fatal(what)
	}
}

// enrol replaces the enrolment by this token, behind prefix, without --server: it's known.
func (h *enrolling) enrol(token string, prefix ...string) (string, error) {
	args := append(prefix, h.d.Programs.Path("drover-agent"), "enroll", "--replace", "--state", h.state)
	cmd := exec.CommandContext(h.t.Context(), args[0], args[1:]...)
	cmd.Env = append(harness.Environ(), "DROVER_ENROLL_TOKEN="+token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func logged(t testing.TB, p *harness.Process, text string) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "the agent logs "+text, func() bool { return strings.Contains(string(p.Log()), text) })
}

// enrolledHost is a host whose agent has been connected, and is stopped.
func enrolledHost(t *testing.T) *enrolling {
	t.Helper()
	data := t.TempDir()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite, Data: data})
	h := &enrolling{t: t, d: d, data: data, state: filepath.Join(t.TempDir(), "state")}
	p := harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + d.Run("enroll", "create", "--agent-id", "web-01")},
		d.Programs.Path("drover-agent"), "run", "--server", d.URL, "--state", h.state)
	d.WaitState("web-01", "online")
	p.Stop()
	d.WaitState("web-01", "offline")
	return h
}

// TestAReplacementThatIsKilled: `drover-agent enroll --replace` is killed before each of its
// steps. The folder has the old enrolment, whole, until the server has accepted the new one;
// from the step after that on it has the new one; and the same command completes it always.
func TestAReplacementThatIsKilled(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	testenv.Require(t, err == nil, "strace isn't installed: apt-get install strace")
	err = exec.CommandContext(t.Context(), strace, "-f", "-qq", "-o", "/dev/null", "true").Run()
	testenv.Require(t, err == nil, fmt.Sprintf("strace may not trace here: %v", err))
	h := enrolledHost(t)
	const before, accepted, after = 0, 1, 2
	for _, c := range []struct {
		call, file string
		state      int
	}{
		{"renameat", "next.TOKEN.key", before},
		{"connect", "", before},
		{"renameat", "next.json", accepted},
		{"renameat", "agent.key", after},
		{"unlinkat", "epoch", after},
		{"unlinkat", "next.stray.key", after},
		{"renameat", "madeby.json", after},
		{"renameat", "state.json", after},
	} {
		what := c.call + " " + c.file
		token := h.d.Run("enroll", "create", "--agent-id", "web-01", "--replace")
		if c.call == "unlinkat" {
			if err := os.WriteFile(filepath.Join(h.state, "next.stray.key"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		kill := []string{strace, "-f", "-qq", "-o", "/dev/null", "-e", "inject=" + c.call + ":signal=KILL"}
		if c.file != "" {
			name := strings.ReplaceAll(c.file, "TOKEN", tokenName(t, token))
			kill = append(kill, "-P", filepath.Join(h.state, name))
		}
		if out, err := h.enrol(token, kill...); err == nil || strings.Contains(out, "web-01") {
			t.Fatalf("%s: it wasn't killed: %s %v", what, out, err)
		}
		switch c.state {
		case before, after:
			h.serves("killed before " + what)
		case accepted: // the same as a lost answer: the server has the new key alone
			p := h.run()
			logged(t, p, "shut out: this key is void")
			p.Stop()
		}
		if out, err := h.enrol(token); err != nil || out != "web-01\n" {
			t.Fatalf("%s: the same again: %s %v", what, out, err)
		}
		h.serves("the same again after " + what)
	}
	if left, _ := filepath.Glob(filepath.Join(h.state, "next*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestATokenForAnEnrolledHost: it isn't used when the agent is run, which says what to do;
// what it says works as it stands. What the server doesn't accept leaves the enrolment.
func TestATokenForAnEnrolledHost(t *testing.T) {
	t.Parallel()
	h := enrolledHost(t)
	token := h.d.Run("enroll", "create", "--agent-id", "web-01", "--replace")
	p := h.run("DROVER_ENROLL_TOKEN=" + token)
	logged(t, p, "msg=connected")
	log := string(p.Log())
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "drover-agent enroll --replace --state "+h.state+" --token-file FILE") {
		t.Errorf("the log: %s", log)
	}
	p.Stop()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), h.d.Programs.Path("drover-agent"), "enroll", "--replace", "--state", h.state, "--token-file", file)
	cmd.Env = harness.Environ()
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "web-01\n" {
		t.Fatalf("%s %v", out, err)
	}
	p = h.run("DROVER_ENROLL_TOKEN=" + token)
	logged(t, p, "msg=connected")
	if log := string(p.Log()); strings.Contains(log, "enroll --replace") {
		t.Errorf("a warning of the token that it was enrolled by: %s", log)
	}
	p.Stop()
	used := h.d.Run("enroll", "create", "--agent-id", "web-02")
	harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + used}, h.d.Programs.Path("drover-agent"), "run", "--server", h.d.URL, "--state", filepath.Join(t.TempDir(), "other"))
	h.d.WaitState("web-02", "online")
	if out, err := h.enrol(used); err == nil || !strings.Contains(out, "token isn't valid") {
		t.Errorf("a used token: %s %v", out, err)
	}
	h.serves("after a used token")
}

// TestAnotherUsersEnrolment: the agent's user couldn't read what root enrols in its folder.
func TestAnotherUsersEnrolment(t *testing.T) {
	t.Parallel()
	testenv.Require(t, os.Geteuid() == 0, "only root can give a file away: run the tests as root")
	h := enrolledHost(t)
	state := filepath.Join(h.state, "state.json")
	if err := os.Chown(state, 65534, -1); err != nil {
		t.Fatal(err)
	}
	token := h.d.Run("enroll", "create", "--agent-id", "web-01", "--replace")
	if out, err := h.enrol(token); err == nil || !strings.Contains(out, "runuser -u ") {
		t.Errorf("%s %v", out, err)
	}
	if err := os.Chown(state, 0, -1); err != nil {
		t.Fatal(err)
	}
	h.serves("after it was refused")
}

// TestAnAgentFromAfterTheBackup: an agent that was enrolled since the backup of a database
// that's put back says both what may be, and what to do; the server's log names it.
func TestAnAgentFromAfterTheBackup(t *testing.T) {
	t.Parallel()
	h := enrolledHost(t)
	h.d.Server.Stop()
	for _, name := range []string{"drover.db", "drover.db-wal", "drover.db-shm"} {
		if err := os.Remove(filepath.Join(h.data, name)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	h.d.Serve(addr(h.d))
	h.d.Admin = h.d.Run("pat", "create", "--name", "anew", "--agents", "all", "--tools", "all", "--admin")
	p := h.run()
	logged(t, p, "drover enroll create --agent-id web-01")
	if log := string(p.Log()); !strings.Contains(log, "database was put back") || !strings.Contains(log, "check the URL") {
		t.Errorf("the agent's log: %s", log)
	}
	harness.Eventually(t, 10*time.Second, "the server logs which agent it doesn't know", func() bool {
		for line := range strings.Lines(string(h.d.Server.Log())) {
			if strings.Contains(line, "handshake failed") && strings.Contains(line, `"agent":"web-01"`) && strings.Contains(line, "no agent of this server") {
				return true
			}
		}
		return false
	})
	p.Stop()
	token := h.d.Run("enroll", "create", "--agent-id", "web-01")
	if out, err := h.enrol(token); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	logged(t, h.run(), "msg=connected")
	h.d.WaitState("web-01", "online")
}

// tokenName is the id of an enrolment token, as files and the wire have it.
func tokenName(t *testing.T, text string) string {
	t.Helper()
	token, err := protocol.ParseEnrolToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.B64(token.ID[:])
}
