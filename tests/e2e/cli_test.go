package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestCommandLine drives the programs as a user does: a server, hosts, tokens and calls.
func TestCommandLine(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	d.Host("web-01")
	url := []string{"--url", d.URL}
	pat := []string{"DROVER_PAT=" + d.Admin}

	t.Run("call", func(t *testing.T) { callCommand(t, d, url, pat) })

	t.Run("tokens beside the server", func(t *testing.T) {
		token := d.Run("pat", "create", "--name", "ci", "--agents", "web-01", "--tools", "shell_exec", "--expires", "30d")
		if !strings.HasPrefix(token, "drv_pat_") || strings.ContainsAny(token, " \n") {
			t.Fatalf("standard output is more than the token: %q", token)
		}
		managesTokens(t, d, token, d.Store)
	})
	t.Run("tokens over the API", func(t *testing.T) {
		flags := append([]string{"--token", d.Admin}, url...)
		r := d.CLI(nil, "", append([]string{"pat", "create", "--name", "ci2", "--agents", "web-01", "--tools", "shell_exec"}, flags...)...)
		if r.Exit != 0 {
			t.Fatalf("pat create: %+v", r)
		}
		managesTokens(t, d, strings.TrimSpace(r.Stdout), flags)
	})
	t.Run("no default grant", func(t *testing.T) {
		for _, args := range [][]string{{"--tools", "all"}, {"--agents", "all"}, {"--agents", "all", "--selector", "a=b", "--tools", "all"}, {"--agents", "", "--tools", "all"}} {
			if r := d.CLI(nil, "", append(append([]string{"pat", "create", "--name", "x"}, args...), d.Store...)...); r.Exit == 0 || r.Stdout != "" {
				t.Errorf("pat create %q: %+v", args, r)
			}
		}
	})
	t.Run("enrolment", func(t *testing.T) {
		r := d.CLI(nil, "", append([]string{"enroll", "create", "--agent-id", "web-02", "--label", "env=lab"}, d.Store...)...)
		token := strings.TrimSpace(r.Stdout)
		if r.Exit != 0 || strings.ContainsAny(token, " \n") || !strings.Contains(r.Stderr, "drover-agent run --server") {
			t.Fatalf("enroll create: %+v", r)
		}
		state := filepath.Join(t.TempDir(), "state")
		agent := harness.Start(t, nil, d.Programs.Path("drover-agent"), "run", "--server", d.URL, "--state", state, "--token", token)
		d.WaitState("web-02", "online")
		agent.Stop()
		d.WaitState("web-02", "offline")
		// From now on its key is enough.
		harness.Start(t, nil, d.Programs.Path("drover-agent"), "run", "--server", d.URL, "--state", state)
		d.WaitState("web-02", "online")
		if out := d.Run("agents", "list", "--json"); !strings.Contains(out, `"web-02"`) || !strings.Contains(out, "lab") {
			t.Errorf("agents list: %s", out)
		}
		d.Run("agents", "remove", "web-02")
		if r := d.CLI(nil, "", append([]string{"enroll", "create", "--agent-id", "web-02"}, d.Store...)...); r.Exit == 0 || !strings.Contains(r.Stderr, "conflict") {
			t.Errorf("a removed id is given out again: %+v", r)
		}
	})
}

// managesTokens finds the token in the list, calls with it, revokes it, and finds it dead.
func managesTokens(t *testing.T, d *harness.Deployment, token string, flags []string) {
	t.Helper()
	list := d.CLI(nil, "", append([]string{"pat", "list", "--json"}, flags...)...)
	var got struct {
		PATs []struct {
			ID, Name, State string
		} `json:"pats"`
	}
	if err := json.Unmarshal([]byte(list.Stdout), &got); err != nil || len(got.PATs) == 0 {
		t.Fatalf("pat list: %v: %+v", err, list)
	}
	if strings.Contains(list.Stdout, token) {
		t.Error("the list shows the token")
	}
	call := func() harness.Said {
		return d.CLI([]string{"DROVER_PAT=" + token}, "", "call", "--url", d.URL, "--agent", "web-01", "shell_exec", "command=true")
	}
	harness.Eventually(t, patience, "the token works", func() bool { return call().Exit == 0 })
	newest := got.PATs[0]
	if r := d.CLI(nil, "", append([]string{"pat", "revoke", newest.ID}, flags...)...); r.Exit != 0 {
		t.Fatalf("pat revoke: %+v", r)
	}
	harness.Eventually(t, patience, "the token is dead", func() bool {
		r := call()
		return r.Exit == 255 && strings.HasPrefix(r.Stderr, "drover: unauthenticated: ")
	})
}

// callCommand checks arguments and exit codes of drover call.
func callCommand(t *testing.T, d *harness.Deployment, url, pat []string) {
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(`{"argv":["printf","%s|","a b","$HOME"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	on := func(agent string, args ...string) []string {
		return append(append([]string{"call", "--agent", agent}, url...), args...)
	}
	for _, c := range []struct {
		name, stdin    string
		env, args      []string
		exit           int
		stdout, stderr string // stderr: what it begins with
	}{
		{"key=value", "", pat, on("web-01", "shell_exec", "command=echo $DROVER_AGENT_ID"), 0, "web-01\n", ""},
		{"a number by the schema", "", pat, on("web-01", "shell_exec", "command=echo hi", "timeout_seconds=5"), 0, "hi\n", ""},
		{"a list by the schema", "", pat, on("web-01", "shell_exec", "argv=printf", "argv=%s", "argv=a=b c"), 0, "a=b c", ""},
		{"key:=JSON", "", pat, on("web-01", "shell_exec", `argv:=["echo","1 2"]`, "timeout_seconds:=5"), 0, "1 2\n", ""},
		{"--args @file", "", pat, on("web-01", "shell_exec", "--args", "@"+file), 0, "a b|$HOME|", ""},
		{"--args -", `{"command":"cat","stdin":"from stdin"}`, pat, on("web-01", "shell_exec", "--args", "-"), 0, "from stdin", ""},
		{"its own exit code", "", pat, on("web-01", "shell_exec", "command=echo out; echo err >&2; exit 3"), 3, "out\n", "err\n"},
		{"a signal", "", pat, on("web-01", "shell_exec", "command=kill -9 $$"), 137, "", "drover: tool_failed (signal): "},
		{"a time limit", "", pat, on("web-01", "shell_exec", "command=echo part; sleep 100", "timeout_seconds=1"), 255, "part\n", "drover: timed_out"},
		{"a wrong argument", "", pat, on("web-01", "shell_exec", "commande=true"), 255, "", "drover: bad_args: "},
		{"no such agent", "", pat, on("web-0", "shell_exec", "command=true"), 255, "", "drover: unknown_agent: "},
		{"no such tool", "", pat, on("web-01", "no_tool"), 255, "", "drover: unknown_tool: "},
		{"no token", "", nil, on("web-01", "shell_exec", "command=true"), 255, "", "drover: unauthenticated: "},
		{"a wrong token", "", []string{"DROVER_PAT=drv_pat_x"}, on("web-01", "shell_exec", "command=true"), 255, "", "drover: unauthenticated: "},
		{"no agent", "", pat, append([]string{"call", "shell_exec", "command=true"}, url...), 255, "", "drover: no_agent: "},
		{"no agent from the environment", "", append([]string{"DROVER_AGENT=web-01", "DROVER_AGENT_ID=web-01", "DROVER_CALL_AGENT=web-01"}, pat...),
			append([]string{"call", "shell_exec", "command=true"}, url...), 255, "", "drover: no_agent: "},
		{"an agent_id among the arguments", "", pat, on("web-01", "shell_exec", "command=true", "agent_id=web-02"), 255, "", "drover: bad_args: "},
		{"no server", "", pat, []string{"call", "--url", "http://127.0.0.1:1", "--agent", "web-01", "shell_exec", "--args", `{"command":"true"}`}, 255, "", "drover: "},
	} {
		r := d.CLI(c.env, c.stdin, c.args...)
		if r.Exit != c.exit || r.Stdout != c.stdout || !strings.HasPrefix(r.Stderr, c.stderr) || c.stderr == "" && r.Stderr != "" {
			t.Errorf("%s: exit %d, want %d; stdout %q, want %q; stderr %q, want %q…", c.name, r.Exit, c.exit, r.Stdout, c.stdout, r.Stderr, c.stderr)
		}
	}
}
