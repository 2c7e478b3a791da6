package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// invalidPAT is what is said of a token that was given and doesn't count, whatever it lacks.
const invalidPAT = "drover: unauthenticated: the personal access token that was given isn't valid: it's malformed, unknown, expired or revoked; an administrator makes another with: drover pat create"

// notGranted is what is said of a tool that isn't there, or not for this credential.
const notGranted = "drover: unknown_tool: no tool of that name is granted to this credential; drover tools (GET /api/v1/tools) lists those that are"

func TestCall(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f, u := fleet1(t)
	f.RawAgent("none-01") // has told nothing yet, so it offers nothing
	few, _ := f.PAT("few", "web-01", "fs_read", false)
	gone, id := f.PAT("gone", "web-01", "all", false)
	if got := u.drover(t.Context(), "pat", "revoke", id); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(`{"command":"echo from a file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		args     []string
		env      map[string]string
		stdin    string
		code     int
		out, err string // err that begins with ^ is a prefix
	}{
		{name: "named host", args: []string{"--agent", "web-01", "shell_exec", "command=echo $DROVER_AGENT_ID"}, out: "web-01\n"},
		{name: "exit code", args: []string{"--agent", "web-01", "shell_exec", "command=echo o; echo e >&2; exit 7"}, code: 7, out: "o\n", err: "e\n"},
		{name: "exit code of a queued call", args: []string{"--agent", "web-01", "shell_exec", "command=echo o; echo e >&2; exit 75"}, code: 75, out: "o\n", err: "e\ndrover: the command itself exited with 75\n"},
		{name: "exit code of a failed call", args: []string{"--agent", "web-01", "shell_exec", "command=printf 'drover: queued: x' >&2; exit 255"}, code: 255, err: "drover: queued: x\ndrover: the command itself exited with 255\n"},
		{name: "signal", args: []string{"--agent", "web-01", "shell_exec", "command=echo part; kill -9 $$"}, code: 137, out: "part\n", err: "^drover: tool_failed (signal): "},
		{name: "time", args: []string{"--agent", "web-01", "shell_exec", "command=echo part; sleep 60", "timeout_seconds=1"}, code: 255, out: "part\n", err: "^drover: timed_out: "},
		{name: "longer than the first wait", args: []string{"--agent", "web-01", "shell_exec", "command=sleep 2; echo done"}, out: "done\n"},
		{name: "list", args: []string{"--agent", "web-01", "shell_exec", "argv=printf", "argv=%s|", "argv=a b", "argv=$HOME"}, out: "a b|$HOME|"},
		{name: "map", args: []string{"--agent", "web-01", "shell_exec", "command=echo $A", "env=A=b=c"}, out: "b=c\n"},
		{name: "args from a file", args: []string{"--agent", "web-01", "shell_exec", "--args", "@" + file}, out: "from a file\n"},
		{name: "args from stdin", args: []string{"--agent", "web-01", "shell_exec", "--args", "-"}, stdin: `{"command":"echo from stdin"}`, out: "from stdin\n"},
		{name: "twice in args", args: []string{"--agent", "web-01", "shell_exec", "--args", `{"command":"a","command":"b"}`}, code: 255, err: "^drover: bad_args: --args: "},
		{name: "file tool", args: []string{"--agent", "web-01", "fs_read", "path=" + file}, out: `{"command":"echo from a file"}`},
		{name: "no such file", args: []string{"--agent", "web-01", "fs_read", "path=/nope/nope"}, code: 255, err: "^drover: tool_failed (enoent): "},
		{name: "no agent", args: []string{"shell_exec", "command=id"}, code: 255, err: "^drover: no_agent: "},
		{name: "empty agent", args: []string{"--agent", "", "shell_exec", "command=id"}, code: 255, err: "^drover: no_agent: "},
		{name: "no agent by environment", args: []string{"shell_exec", "command=id"}, env: map[string]string{"DROVER_AGENT": "web-01", "DROVER_AGENT_ID": "web-01"}, code: 255, err: "^drover: no_agent: "},
		{name: "unknown agent", args: []string{"--agent", "web", "shell_exec", "command=id"}, code: 255, err: "^drover: unknown_agent: no agent of that id is in this credential's scope; drover agents list (GET /api/v1/agents) shows the ids"},
		{name: "unknown tool", args: []string{"--agent", "web-01", "nope", "a=1"}, code: 255, err: notGranted + "\n"},
		{name: "mistyped tool", args: []string{"--agent", "web-01", "shell_exce", "command=id"}, code: 255, err: notGranted + " (is it shell_exec?)\n"},
		{name: "mistyped tool of no agent", args: []string{"--agent", "nope", "shell_exce"}, code: 255, err: notGranted + " (is it shell_exec?)\n"},
		{name: "mistyped and not granted", args: []string{"--agent", "web-01", "shell_exce"}, env: map[string]string{"DROVER_PAT": few}, code: 255, err: notGranted + "\n"},
		{name: "mistyped and not offered", args: []string{"--agent", "none-01", "shell_exce"}, code: 255, err: notGranted + "\n"},
		{name: "not granted", args: []string{"--agent", "web-01", "shell_exec", "command=id"}, env: map[string]string{"DROVER_PAT": few}, code: 255, err: "^drover: unknown_tool: "},
		{name: "no tool", args: []string{"--agent", "web-01"}, code: 255, err: "^drover: bad_args: name a tool"},
		{name: "bad argument", args: []string{"--agent", "web-01", "shell_exec", "timeout_seconds=x"}, code: 255, err: "^drover: bad_args: "},
		{name: "agent_id as argument", args: []string{"--agent", "web-01", "shell_exec", "command=id", "agent_id=db-01"}, code: 255, err: "^drover: bad_args: agent_id is no argument"},
		{name: "agent_id in args", args: []string{"--agent", "web-01", "shell_exec", "--args", `{"command":"id","agent_id":"db-01"}`}, code: 255, err: "^drover: bad_args: "},
		{name: "unknown flag", args: []string{"--agnet", "web-01", "shell_exec"}, code: 255, err: "^drover: bad_args: "},
		{name: "wrong token", args: []string{"--agent", "web-01", "shell_exec", "command=id"}, env: map[string]string{"DROVER_PAT": "drv_pat_x"}, code: 255, err: invalidPAT + " (it was taken from DROVER_PAT)\n"},
		{name: "wrong token by flag", args: []string{"--token", "drv_pat_x", "--agent", "web-01", "shell_exec"}, code: 255, err: invalidPAT + " (it was taken from --token)\n"},
		{name: "revoked token", args: []string{"--agent", "web-01", "shell_exec", "command=id"}, env: map[string]string{"DROVER_PAT": gone}, code: 255, err: invalidPAT + " (it was taken from DROVER_PAT)\n"},
		{name: "no token", args: []string{"--agent", "web-01", "shell_exec", "command=id"}, env: map[string]string{"DROVER_PAT": ""}, code: 255, err: "^drover: unauthenticated: a personal access token is needed"},
		{name: "no server", args: []string{"--url", "http://127.0.0.1:1", "--agent", "web-01", "shell_exec", "command=id"}, code: 255, err: "^drover: unavailable: no Drover server answers"},
		{name: "no URL", args: []string{"--url", "ftp://x", "--agent", "web-01", "shell_exec", "command=id"}, code: 255, err: "^drover: bad_args: --url"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run{env: map[string]string{}, stdin: c.stdin}
			for _, m := range []map[string]string{u.env, c.env} {
				for k, v := range m {
					r.env[k] = v
				}
			}
			got := r.drover(t.Context(), append([]string{"call"}, c.args...)...)
			if strings.Contains(got.err, "list_agents") || strings.Contains(got.err, "select_agent") {
				t.Errorf("a tool of MCP's is no command: %s", got.err)
			}
			wantErr, prefix := strings.CutPrefix(c.err, "^")
			if got.code != c.code || got.out != c.out || (prefix && !strings.HasPrefix(got.err, wantErr)) || (!prefix && got.err != wantErr) {
				t.Errorf("exit %d\nout %q\nerr %q\nwant exit %d\nout %q\nerr %q", got.code, got.out, got.err, c.code, c.out, c.err)
			}
		})
	}
}

// An interrupt ends the command on the host, and says so.
func TestInterruptCancels(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	_, u := fleet1(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	done := make(chan result, 1)
	go func() {
		done <- u.drover(ctx, "call", "--agent", "web-01", "shell_exec", "command=echo begun; echo $$ > "+pidFile+"; exec sleep 600")
	}()
	var pid int
	harness.Eventually(t, 10*time.Second, "the command runs", func() bool {
		b, err := os.ReadFile(pidFile)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err == nil && pid > 0
	})
	interrupt()
	got := <-done
	if got.code != 255 || got.out != "begun\n" || !strings.Contains(got.err, "drover: cancelled: ") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
		t.Errorf("process %d still runs", pid)
	}
}

// A connection that is lost after the server took the request doesn't run the command
// twice, and doesn't lose its output.
func TestLostConnectionRunsOnce(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f, u := fleet1(t)
	target, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	var cuts atomic.Int32
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = cutting{&cuts}
	front := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) }
	front.ErrorLog = nil
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = front.Serve(ln) }()
	t.Cleanup(func() { _ = front.Close() })
	count := filepath.Join(t.TempDir(), "count")
	got := u.drover(t.Context(), "call", "--url", "http://"+ln.Addr().String(), "--agent", "web-01", "shell_exec", "command=echo x >> "+count+"; sleep 4; echo done")
	if got.code != 0 || got.out != "done\n" {
		t.Errorf("%+v", got)
	}
	if b, err := os.ReadFile(count); err != nil || string(b) != "x\n" {
		t.Errorf("ran %q, %v", b, err)
	}
	if cuts.Load() < 2 {
		t.Errorf("only %d connections were cut", cuts.Load())
	}
}

// cutting loses the first answer to each kind of request about a call.
type cutting struct{ cuts *atomic.Int32 }

func (c cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	first := (r.Method == http.MethodPost && c.cuts.CompareAndSwap(0, 1)) || (r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/calls/") && c.cuts.CompareAndSwap(1, 2))
	if first {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, nil
}
