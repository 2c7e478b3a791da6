package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestLongOutputIsPaged: what a result leaves out is read from the host page by page as the
// texts themselves say, each byte once, by the one who made the call and by nobody else; also
// after the agent's restart.
func TestLongOutputIsPaged(t *testing.T) {
	f := harness.New(t, harness.Options{})
	host := f.Agent("web-01")
	other, _ := f.PAT("other", "web-01", "all", false)
	var lines strings.Builder
	for i := range 20_000 {
		fmt.Fprintln(&lines, i+1)
	}
	for _, era := range harness.Eras() {
		s := f.MCP(f.Admin, era, nil)
		for command, want := range map[string]string{
			"seq 20000": lines.String(),
			// Nothing to break a page at.
			`head -c 150000 /dev/zero | tr '\0' a`: strings.Repeat("a", 150_000),
		} {
			cut := said(t, s, "shell_exec", map[string]any{"agent_id": "web-01", "command": command, "max_output": 5000})
			m := regexp.MustCompile(`full output kept for a day: shell_output\(call_id="([^"]+)", offset=0\)`).FindStringSubmatch(cut)
			if m == nil {
				t.Fatalf("%s: %.300s", command, cut)
			}
			host.Stop()
			host.Start()
			host.WaitOnline()
			if got := paged(t, s, m[1]); got != want {
				t.Errorf("%s: %d bytes, not %d", command, len(got), len(want))
			}
			got := said(t, f.MCP(other, era, nil), "shell_output", map[string]any{"agent_id": "web-01", "call_id": m[1]})
			if !strings.HasPrefix(got, "tool_failed (enoent): ") {
				t.Errorf("to another: %.300s", got)
			}
		}
	}
}

func said(t *testing.T, s *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return textOf(r)
}

// paged follows what each page says.
func paged(t *testing.T, s *mcp.ClientSession, callID string) string {
	t.Helper()
	more := regexp.MustCompile(` · more at offset (\d+) · `)
	var all strings.Builder
	for at := "0"; ; {
		head, body, _ := strings.Cut(said(t, s, "shell_output", map[string]any{"agent_id": "web-01", "call_id": callID, "offset": number(t, at)}), "\n")
		all.WriteString(body)
		m := more.FindStringSubmatch(head)
		if m == nil {
			if !strings.Contains(head, " · the end · ") {
				t.Errorf("neither more nor the end: %s", head)
			}
			return all.String()
		}
		if m[1] == at {
			t.Fatalf("no way on: %s", head)
		}
		at = m[1]
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n := 0
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
