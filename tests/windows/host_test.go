//go:build wine

// Package windows_test runs the agent's Windows program under Wine, as a host of a real
// server. tests/windows/run (make test-windows) prepares what it needs.
package windows_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// host is a Windows host and a server that it's connected to.
type host struct {
	*harness.Deployment
	agent *harness.Process
	drive string // C:, as this machine sees it
}

func newHost(t *testing.T) *host {
	prefix := os.Getenv("WINEPREFIX")
	if prefix == "" {
		t.Fatal("WINEPREFIX is empty: run make test-windows")
	}
	h := &host{Deployment: harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{}), drive: filepath.Join(prefix, "drive_c")}
	h.start(h.Run("enroll", "create", "--agent-id", "win-01"))
	return h
}

// start runs the agent, with a token only the first time.
func (h *host) start(token string) {
	h.T.Helper()
	args := []string{`C:\drover-agent.exe`, "run", "--server", h.URL, "--state", `C:\the state of drover`}
	if token != "" {
		args = append(args, "--token", token)
	}
	h.agent = harness.Start(h.T, nil, "wine", args...)
	h.WaitState("win-01", "online")
}

// kill ends the agent at once, and waits until the server knows it.
func (h *host) kill() {
	h.T.Helper()
	h.agent.Kill()
	h.WaitState("win-01", "offline")
}

// ok makes a call that has to succeed, and decodes its result.
func (h *host) ok(tool string, args map[string]any, out any) {
	h.T.Helper()
	status, r := h.REST(h.Admin).Call("win-01", tool, args)
	if r.State != "succeeded" {
		h.T.Fatalf("%s %v: %d %+v", tool, args, status, r)
	}
	if err := json.Unmarshal(r.Result, out); err != nil {
		h.T.Fatal(err)
	}
}

// refused makes a call that has to fail with that code and reason.
func (h *host) refused(code, tool string, args map[string]any) {
	h.T.Helper()
	_, r := h.REST(h.Admin).Call("win-01", tool, args)
	if got := strings.TrimSpace(r.Error.Code + " " + r.Error.Reason); got != code {
		h.T.Errorf("%s %v: %q (%s), not %q", tool, args, got, r.Error.Message, code)
	}
}

type ended struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

// mark is an argument that no other process has; a process of Wine is one of this machine.
func mark() string { return strconv.Itoa(100_000_000 + rand.IntN(100_000_000)) }

// alive counts the processes that were started with the mark.
func alive(mark string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		b, _ := os.ReadFile(name)
		if args := bytes.Split(b, []byte{0}); len(args) > 1 && bytes.Contains(b, []byte(mark)) {
			n++
		}
	}
	return n
}

func (h *host) none(what, mark string) {
	h.T.Helper()
	harness.Eventually(h.T, 10*time.Second, what+" to be dead", func() bool { return alive(mark) == 0 })
}

// TestWindowsHost: what the promises of docs/guarantees.md need of Windows.
func TestWindowsHost(t *testing.T) {
	h := newHost(t)
	h.commands()
	h.aTimeLimit()
	h.files()
	h.ownFolder()
	h.aJobOutlivesItsAgent()
	h.aCommandEndsWithItsAgent()
}

// cmd's own ways: %NAME%, exit codes, folder, environment, input.
func (h *host) commands() {
	var out ended
	h.ok("shell_exec", map[string]any{"command": "echo %DROVER_AGENT_ID%& echo no 1>&2& exit 7"}, &out)
	if out.Stdout != "win-01\r\n" || strings.TrimSpace(out.Stderr) != "no" || out.ExitCode != 7 {
		h.T.Errorf("%+v", out)
	}
	h.ok("shell_exec", map[string]any{"command": "cd& set KEY& more", "cwd": `C:\windows`, "env": map[string]any{"KEY": "value"}, "stdin": "line\r\n"}, &out)
	if !strings.HasPrefix(out.Stdout, "C:\\windows\r\nKEY=value\r\nline") {
		h.T.Errorf("%+v", out)
	}
}

// A time limit ends what the command started, however it did, and only that.
func (h *host) aTimeLimit() {
	m, n := mark(), mark()
	var job struct {
		ID string `json:"job_id"`
	}
	h.ok("job_start", map[string]any{"command": "ping -n " + n + " 127.0.0.1 >nul"}, &job)
	h.refused("timed_out", "shell_exec", map[string]any{
		"command":         fmt.Sprintf("start /b ping -n %s 127.0.0.1 >nul & start cmd /c ping -n %s 127.0.0.1 & ping -n %s 127.0.0.1 >nul", m, m, m),
		"timeout_seconds": 3,
	})
	h.none("what the command started", m)
	if alive(n) == 0 {
		h.T.Error("the job went with it")
	}
	h.ok("job_stop", map[string]any{"job_id": job.ID}, &struct{}{})
	h.none("the job", n)
}

// Files by every spelling of a path, and those spellings that mean something else.
func (h *host) files() {
	var file struct {
		SHA256 string `json:"sha256"`
		Size   int    `json:"size"`
	}
	path := `C:\a new folder\of two\note.txt`
	h.ok("fs_write", map[string]any{"path": path, "content": "héllo\n", "create_parents": true}, &file)
	if file.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte("héllo\n"))) {
		h.T.Errorf("%+v", file)
	}
	h.refused("tool_failed sha_mismatch", "fs_write", map[string]any{"path": path, "content": "x", "if_sha256": strings.Repeat("0", 64)})
	var read struct {
		Text string `json:"text"`
	}
	h.ok("fs_read", map[string]any{"path": strings.ToUpper(strings.ReplaceAll(path, `\`, "/"))}, &read)
	if read.Text != "héllo\n" {
		h.T.Errorf("%+v", read)
	}
	for path, code := range map[string]string{
		`relative`: "bad_args", `C:relative`: "bad_args", `\nodrive`: "bad_args", `\\?\C:\windows`: "bad_args", `\\.\C:`: "bad_args",
		`C:\windows\con`: "tool_failed einval", `C:\windows\x:stream`: "tool_failed einval", `C:\windows\x.`: "tool_failed einval",
	} {
		h.refused(code, "fs_stat", map[string]any{"path": path})
		h.refused(code, "fs_write", map[string]any{"path": path, "content": "x"})
	}
	sent, back := filepath.Join(h.T.TempDir(), "sent"), filepath.Join(h.T.TempDir(), "back")
	content := bytes.Repeat([]byte("0123456789abcde\n"), 100_000)
	if err := os.WriteFile(sent, content, 0o600); err != nil {
		h.T.Fatal(err)
	}
	for _, args := range [][]string{{sent, `win-01:C:\a new folder\sent`}, {`win-01:C:\a new folder\sent`, back}} {
		if said := h.CLI(nil, "", append([]string{"cp", "--url", h.URL, "--token", h.Admin}, args...)...); said.Exit != 0 {
			h.T.Fatalf("cp %v: %+v", args, said)
		}
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		h.T.Errorf("%d bytes came back, %v", len(got), err)
	}
}

// Z: is this machine's root: by it the agent's folder has a name that can't be told from its path.
func (h *host) ownFolder() {
	for _, folder := range []string{`C:\the state of drover`, `c:\THE STATE OF DROVER`, `Z:` + strings.ReplaceAll(h.drive, "/", `\`) + `\the state of drover`} {
		h.refused("tool_failed eacces", "fs_list", map[string]any{"path": folder})
		h.refused("tool_failed eacces", "fs_read", map[string]any{"path": folder + `\agent.key`})
		h.refused("tool_failed eacces", "fs_write", map[string]any{"path": folder + `\new`, "content": "x"})
	}
}

// A job goes on when its agent is killed, and is stopped by the next one.
func (h *host) aJobOutlivesItsAgent() {
	m := mark()
	var job struct {
		ID    string `json:"job_id"`
		State string `json:"state"`
	}
	h.ok("job_start", map[string]any{"command": "echo begun& ping -n " + m + " 127.0.0.1 >nul"}, &job)
	h.kill()
	h.start("")
	var out struct {
		State string `json:"state"`
		Text  string `json:"text"`
	}
	harness.Eventually(h.T, 20*time.Second, "the job's output", func() bool {
		h.ok("job_output", map[string]any{"job_id": job.ID}, &out)
		return out.Text != ""
	})
	if out.State != "running" || out.Text != "begun\r\n" || alive(m) == 0 {
		h.T.Errorf("%+v, %d processes", out, alive(m))
	}
	h.ok("job_stop", map[string]any{"job_id": job.ID}, &job)
	if job.State != "killed" {
		h.T.Errorf("%+v", job)
	}
	h.none("the job", m)
}

// A command ends with its agent.
func (h *host) aCommandEndsWithItsAgent() {
	m := mark()
	done := make(chan harness.CallResult, 1)
	go func() {
		_, r := h.REST(h.Admin).Call("win-01", "shell_exec", map[string]any{"command": "ping -n " + m + " 127.0.0.1 >nul"})
		done <- r
	}()
	harness.Eventually(h.T, 20*time.Second, "the command and its child", func() bool { return alive(m) == 2 })
	h.kill()
	h.none("the command", m)
	h.start("")
	select {
	case r := <-done:
		if r.Error.Code != "outcome_unknown" {
			h.T.Errorf("%+v", r)
		}
	case <-time.After(40 * time.Second):
		h.T.Error("no end")
	}
}
