package main

import (
	"slices"
	"strings"
	"testing"

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
	if got := u.drover(t.Context(), "tools", "--agent", "nope"); got.code != 1 || !strings.HasPrefix(got.err, "drover: unknown_agent: ") {
		t.Errorf("%+v", got)
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
