//go:build clients

package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// TestClaudeCode lets Claude Code, driven by a scripted model, run a command on
// the named host of two, in both eras.
func TestClaudeCode(t *testing.T) {
	program := claudeCode(t)
	s := launch(t, "", "")
	s.Host("web-01")
	s.Host("web-02")
	for _, c := range []struct{ name, revision, generation, host string }{
		{"modern", modern, "", "web-01"},
		{"legacy", legacy, "v1", "web-02"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &model{tool: "mcp__drover__shell_exec", args: map[string]any{"agent_id": c.host, "command": "echo $DROVER_AGENT_ID"}}
			p := front(t, s, "")
			claude := claudeIn(t, program, m.serve(t), c.generation)
			claude("mcp", "add", "--transport", "http", "drover", p.url, "--header", "Authorization: Bearer "+s.Admin)
			if said := claude("mcp", "list"); !strings.Contains(said, "Connected") {
				t.Errorf("claude mcp list: %s", said)
			}
			listed(t, claude("-p", "go", "--allowedTools", "mcp__drover__shell_exec", "--output-format", "stream-json", "--verbose"))
			taught(t, m)
			got, called := m.result()
			if !called || got.isError {
				t.Fatalf("the result of shell_exec: %+v, came back: %v", got, called)
			}
			ranOn(t, c.host, got.text)
			p.spoke(t, c.revision)
		})
	}
}

// claudeCode returns the native program that npm installed for this machine.
func claudeCode(t *testing.T) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	path, err := filepath.Abs("claude/node_modules/@anthropic-ai/claude-code-" + runtime.GOOS + "-" + arch + "/claude")
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(path)
	testenv.Require(t, err == nil, "Claude Code isn't installed: run npm ci in tests/conformance/claude")
	return path
}

// claudeIn returns a function that runs Claude Code with a home and a project
// folder of its own, the model at url for Anthropic's API, and nothing else of
// this process's environment. generation "v1" forces the older era.
func claudeIn(t *testing.T, program, url, generation string) func(args ...string) string {
	t.Helper()
	home, project := t.TempDir(), t.TempDir()
	return func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = project
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "CLAUDE_CODE_TMPDIR=" + home,
			"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=scripted", "MCP_SDK_GENERATION=" + generation,
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "IS_SANDBOX=1",
		}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("claude %s: %v\n%s%s", args[0], err, harness.Tail(out, 4<<10), stderr.String())
		}
		return string(out)
	}
}

// listed reads the first event of Claude Code's output: it has to name Drover
// as connected and its tools.
func listed(t *testing.T, events string) {
	t.Helper()
	first, _, _ := strings.Cut(events, "\n")
	var init struct {
		Tools   []string
		Servers []struct{ Name, Status string } `json:"mcp_servers"`
	}
	if err := json.Unmarshal([]byte(first), &init); err != nil {
		t.Fatalf("the first event: %v\n%s", err, harness.Tail([]byte(events), 4<<10))
	}
	if len(init.Servers) != 1 || init.Servers[0].Name != "drover" || init.Servers[0].Status != "connected" {
		t.Errorf("MCP servers: %+v, want drover alone, connected", init.Servers)
	}
	for _, tool := range []string{"shell_exec", "fs_read", "list_agents", "select_agent"} {
		if !slices.Contains(init.Tools, "mcp__drover__"+tool) {
			t.Errorf("%s isn't listed among %q", tool, init.Tools)
		}
	}
}

// taught fails the test unless the model was shown Drover's instructions and a
// schema of its tool that requires agent_id.
func taught(t *testing.T, m *model) {
	t.Helper()
	var instructed, required bool
	for _, h := range m.all() {
		// Before its first tool use, the model can know agent_id from the instructions alone.
		instructed = instructed || len(h.results) == 0 && strings.Contains(h.system, "agent_id")
		var schema struct{ Required []string }
		if raw := h.schemas[m.tool]; raw != nil && json.Unmarshal(raw, &schema) == nil {
			required = required || slices.Contains(schema.Required, "agent_id")
		}
	}
	if !instructed {
		t.Error("the server's instructions didn't reach the model")
	}
	if !required {
		t.Errorf("%s didn't reach the model with agent_id required", m.tool)
	}
}
