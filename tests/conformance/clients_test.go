package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestClients lists and calls with clients that others wrote, on two hosts.
func TestClients(t *testing.T) {
	node := node(t)
	inspector := installed(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	bridge := installed(t, "mcp-remote/dist/proxy.js")
	s := launch(t, "", "")
	s.Host("web-01")
	s.Host("web-02")

	for era, revision := range map[string]string{"modern": modern, "legacy": legacy} {
		t.Run("inspector/"+era, func(t *testing.T) {
			p := front(t, s, "")
			inspectList(t, inspect(t, node, inspector, p.url, s.Admin, "--protocol-era", era, "--method", "tools/list", "--strict"))
			for _, host := range []string{"web-01", "web-02", "web-01"} {
				got := inspect(t, node, inspector, p.url, s.Admin, "--protocol-era", era,
					"--method", "tools/call", "--tool-name", "shell_exec", "--tool-arg", "agent_id="+host, "command=echo $DROVER_AGENT_ID")
				if got.exit != 0 {
					t.Fatalf("call on %s: exit %d: %s%s", host, got.exit, got.stdout, got.stderr)
				}
				ranOn(t, host, inspected(t, got))
			}
			got := inspect(t, node, inspector, p.url, s.Admin, "--protocol-era", era,
				"--method", "tools/call", "--tool-name", "shell_exec", "--tool-arg", "agent_id=web-0", "command=true")
			const toolFailed = 5
			if got.exit != toolFailed || !strings.Contains(got.stdout, "unknown_agent") {
				t.Errorf("a prefix of an id: exit %d, want %d and unknown_agent: %s%s", got.exit, toolFailed, got.stdout, got.stderr)
			}
			p.spoke(t, revision)
		})
		t.Run("mcp-remote/"+era, func(t *testing.T) {
			p := front(t, s, "")
			cmd := exec.CommandContext(t.Context(), node, bridge, p.url, "--allow-http", "--transport", "http-only", "--header", "Authorization:${AUTH}")
			cmd.Env = append(os.Environ(), "AUTH=Bearer "+s.Admin, "HOME="+t.TempDir(), "MCP_REMOTE_CONFIG_DIR="+t.TempDir())
			bridged(t, cmd, revision)
			p.spoke(t, revision)
		})
	}
}

type inspection struct {
	exit           int
	stdout, stderr string
}

func inspect(t *testing.T, node, program, url, pat string, args ...string) inspection {
	t.Helper()
	all := append([]string{program, "--cli", "--server-url", url, "--transport", "http", "--header", "Authorization: Bearer " + pat, "--format", "json"}, args...)
	cmd := exec.CommandContext(t.Context(), node, all...)
	// The inspector keeps a catalogue in the home folder.
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return inspection{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// inspectList expects the real tools, each forwarded one with its agent_id, and
// nothing for --strict to report.
func inspectList(t *testing.T, got inspection) {
	t.Helper()
	if got.exit != 0 || got.stderr != "" {
		t.Fatalf("tools/list --strict: exit %d: %s", got.exit, got.stderr)
	}
	var list struct {
		Result struct {
			Tools []struct {
				Name        string
				InputSchema struct{ Required []string }
			}
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for _, tool := range list.Result.Tools {
		names[tool.Name] = tool.InputSchema.Required
		if strings.HasPrefix(tool.Name, "test_") {
			t.Errorf("%s is a fixture, in a build without the tag fixtures", tool.Name)
		}
	}
	for _, name := range []string{"shell_exec", "fs_read", "fs_list", "fs_stat", "fs_write", "diag_system"} {
		if !slices.Contains(names[name], "agent_id") {
			t.Errorf("%s isn't listed with agent_id required: %q", name, names[name])
		}
	}
	for _, name := range []string{"list_agents", "select_agent", "whoami"} {
		if _, there := names[name]; !there {
			t.Errorf("%s isn't listed", name)
		}
	}
}

// inspected returns the text of a tools/call that the inspector printed.
func inspected(t *testing.T, got inspection) string {
	t.Helper()
	var call struct {
		Result struct {
			Content []struct{ Type, Text string }
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &call); err != nil {
		t.Fatal(err)
	}
	if len(call.Result.Content) == 0 {
		t.Fatalf("a result without content: %s", got.stdout)
	}
	return call.Result.Content[0].Text
}

// ranOn fails the test unless text is what shell_exec answers for
// echo $DROVER_AGENT_ID on that host: a first line that names it, then its id.
func ranOn(t *testing.T, host, text string) {
	t.Helper()
	first, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "["+host+" · ") || !strings.Contains(first, " · exit 0 · ") {
		t.Errorf("the first line is %q, want it to name %s and exit 0", first, host)
	}
	if strings.TrimSpace(rest) != host {
		t.Errorf("the output is %q, want %q", rest, host)
	}
}

// bridged speaks MCP of a revision with a bridge over its standard input and
// output.
func bridged(t *testing.T, cmd *exec.Cmd, revision string) {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "drover-conformance", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listed := false
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		listed = listed || tool.Name == "shell_exec"
	}
	if !listed {
		t.Error("shell_exec isn't listed")
	}
	for _, host := range []string{"web-02", "web-01"} {
		got, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"agent_id": host, "command": "echo $DROVER_AGENT_ID"}})
		if err != nil {
			t.Fatal(err)
		}
		text, _ := got.Content[0].(*mcp.TextContent)
		if text == nil || got.IsError {
			t.Fatalf("call on %s: %+v", host, got)
		}
		ranOn(t, host, text.Text)
	}
}
