package main

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/callargs"
	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/tests/harness"
)

// drover tools lists what drover call may use: all, an agent's, a credential's.
func TestTools(t *testing.T) {
	f, u := fleet1(t)
	f.RawAgent("none-01") // has told nothing yet, so it offers nothing
	names := func(r run, args ...string) (list []string) {
		t.Helper()
		for _, tool := range into[restapi.ToolList](t, r.drover(t.Context(), append([]string{"tools", "--json"}, args...)...)).Tools {
			if len(tool.InputSchema) == 0 {
				t.Errorf("%s has no schema", tool.Name)
			}
			list = append(list, tool.Name)
		}
		return list
	}
	all := names(u)
	if !slices.Contains(all, "shell_exec") || !slices.Contains(all, "fs_read") || slices.Contains(all, "whoami") {
		t.Errorf("all: %v", all)
	}
	if got := names(u, "--agent", "web-01"); !slices.Contains(got, "shell_exec") {
		t.Errorf("web-01's: %v", got)
	}
	if got := names(u, "--agent", "none-01"); len(got) != 0 {
		t.Errorf("of an agent that offers none: %v", got)
	}
	few, _ := f.PAT("few", "web-01", "fs_read", false)
	one := run{env: map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": few}}
	if got := names(one, "--agent", "web-01"); !slices.Equal(got, []string{"fs_read"}) {
		t.Errorf("a credential's: %v", got)
	}
	if got := one.drover(t.Context(), "tools"); got.code != 0 || !strings.HasPrefix(got.out, "TOOL ") || !strings.Contains(got.out, "\nfs_read  read_only  Read a file on one host") {
		t.Errorf("%+v", got)
	}
	if got := u.drover(t.Context(), "tools", "--agent", "nope", "fs_read"); got.code != 1 || !strings.HasPrefix(got.err, "drover: unknown_agent: ") {
		t.Errorf("%+v", got)
	}
	if got := one.drover(t.Context(), "tools", "shell_exec"); got.code != 1 || !strings.HasPrefix(got.err, "drover: unknown_tool: ") {
		t.Errorf("a tool beyond the grant: %+v", got)
	}
	if got := u.drover(t.Context(), "tools", "shell_exe"); got.code != 1 || !strings.Contains(got.err, "is it shell_exec?") {
		t.Errorf("%+v", got)
	}
	if got := u.drover(t.Context(), "tools", "fs_read", "fs_stat"); got.code != 2 {
		t.Errorf("%+v", got)
	}
	if got := into[restapi.ToolList](t, u.drover(t.Context(), "tools", "--json", "fs_read")).Tools; len(got) != 1 || got[0].Name != "fs_read" {
		t.Errorf("%+v", got)
	}
	if got := u.drover(t.Context(), "tools", "--agent", "nope"); got.code != 1 || !strings.HasPrefix(got.err, "drover: unknown_agent: ") {
		t.Errorf("%+v", got)
	}
}

// drover tools NAME shows each tool with all its arguments, and a line that works as it is.
func TestOneTool(t *testing.T) {
	_, u := fleet1(t)
	for _, tool := range into[restapi.ToolList](t, u.drover(t.Context(), "tools", "--json")).Tools {
		got := u.drover(t.Context(), "tools", "--agent", "web-01", tool.Name)
		if got.code != 0 { // this agent doesn't offer it
			got = u.drover(t.Context(), "tools", tool.Name)
		}
		var schema struct {
			Properties map[string]struct{ Description string }
			Required   []string
		}
		if err := json.Unmarshal(tool.InputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		flat := strings.Join(strings.Fields(got.out), " ")
		if got.code != 0 || !strings.HasPrefix(got.out, tool.Name+" ("+tool.Effect+"): ") || !strings.Contains(flat, strings.Join(strings.Fields(tool.Description), " ")) {
			t.Errorf("%s: %+v", tool.Name, got)
		}
		for name := range schema.Properties {
			row := regexp.MustCompile(`(?m)^` + name + `  +.*`).FindString(got.out)
			if needed := strings.Contains(row, "  yes  "); row == "" || needed != slices.Contains(schema.Required, name) {
				t.Errorf("%s: %s is %q in\n%s", tool.Name, name, row, got.out)
			}
		}
		line := got.out[strings.LastIndex(got.out, "\n  ")+3:]
		if tool.Stream != "" {
			if !strings.HasPrefix(line, "drover cp ") {
				t.Errorf("%s: %s", tool.Name, line)
			}
			continue
		}
		if !strings.HasPrefix(line, "drover call --agent ") || !strings.Contains(line, " "+tool.Name) {
			t.Errorf("%s: %s", tool.Name, line)
		}
		words, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		s, err := callargs.SchemaOf(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		given := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")[5:]
		args, err := callargs.Build(given, "", s)
		if err != nil || capability.Find(tool.Name).Check(args) != nil {
			t.Errorf("%s: %s: %v", line, args, err)
		}
	}
	if got := u.drover(t.Context(), "tools", "--agent", "web-01", "shell_exec"); !regexp.MustCompile(`timeout_seconds +whole number +- +1 to 86400 `).MatchString(got.out) || !strings.Contains(got.out, "list of text") {
		t.Errorf("%s", got.out)
	}
}

// The server's own tools, which MCP clients alone have, are said to be that, with what the
// command line has instead.
func TestToolsOfMCPThroughCall(t *testing.T) {
	f, u := fleet1(t)
	list, err := f.MCP(f.Admin, harness.Modern, nil).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var here []string
	for _, tool := range into[restapi.ToolList](t, u.drover(t.Context(), "tools", "--json")).Tools {
		here = append(here, tool.Name)
	}
	own := 0
	for _, tool := range list.Tools {
		if slices.Contains(here, tool.Name) {
			continue
		}
		own++
		got := u.drover(t.Context(), "call", "--agent", "web-01", tool.Name)
		if want := "drover: unknown_tool: " + tool.Name + " is a tool of the server's own, for MCP clients; the command line has "; got.code != 255 || !strings.HasPrefix(got.err, want) {
			t.Errorf("%s: %+v", tool.Name, got)
		}
	}
	if own < 6 {
		t.Errorf("only %d of MCP's own tools were tried: %v", own, here)
	}
}
