package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/tests/harness"
)

const suite = "@modelcontextprotocol/conformance"

// TestSuite runs MCP's conformance suite for both eras over one URL of a binary
// whose tool table has the suite's fixtures too, on both engines.
func TestSuite(t *testing.T) {
	program, node := installed(t, suite+"/dist/index.js"), node(t)
	t.Run("sqlite", func(t *testing.T) { runSuite(t, node, program, launch(t, "fixtures", "")) })
	t.Run("postgres", func(t *testing.T) { runSuite(t, node, program, launch(t, "fixtures", harness.PostgresSchema(t))) })
}

func runSuite(t *testing.T, node, program string, s *harness.Deployment) {
	t.Helper()
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			out := t.TempDir()
			cmd := exec.CommandContext(t.Context(), node, program, "server",
				"--url", front(t, s, s.Admin).url, "--requirements", revision, "-o", out)
			said, err := cmd.CombinedOutput()
			failed, ran := outcome(t, out)
			for _, scenario := range required(t, revision) {
				if !slices.Contains(ran, scenario) {
					failed = append(failed, scenario+": didn't run")
				}
			}
			for _, f := range failed {
				t.Error(f)
			}
			if err != nil {
				t.Errorf("the suite: %v", err)
			}
			if t.Failed() {
				t.Logf("the suite said:\n%s", harness.Tail(said, 8<<10))
			} else {
				t.Logf("%d scenarios passed", len(ran))
			}
		})
	}
}

// required reads which scenarios a revision requires of a server. The file is
// YAML, of which only its list "server" is needed.
func required(t *testing.T, revision string) []string {
	t.Helper()
	text, err := os.ReadFile(installed(t, suite+"/requirements/"+revision+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "\nserver:\n")
	var names []string
	for line := range strings.Lines(list) {
		name, item := strings.CutPrefix(line, "  - ")
		if !item {
			if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			break
		}
		names = append(names, strings.TrimSpace(name))
	}
	if len(names) == 0 {
		t.Fatalf("no scenario found in the requirements of %s", revision)
	}
	return names
}

// outcome reads what the suite wrote: failed says which checks failed or were
// skipped, ran which scenarios left a result. The scenarios of the extension
// Tasks are left out: they're optional, unscored, and Drover has no Tasks.
func outcome(t *testing.T, dir string) (failed, ran []string) {
	t.Helper()
	folder := regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$`)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		m := folder.FindStringSubmatch(e.Name())
		if m == nil {
			t.Fatalf("the suite wrote %q, which names no scenario", e.Name())
		}
		if strings.HasPrefix(m[1], "tasks-") {
			continue
		}
		ran = append(ran, m[1])
		failed = append(failed, checks(t, filepath.Join(dir, e.Name(), "checks.json"), m[1])...)
	}
	return failed, ran
}

func checks(t *testing.T, file, scenario string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []struct{ ID, Status, Description, ErrorMessage string }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(all) == 0 {
		return []string{scenario + ": no check ran"}
	}
	var failed []string
	for _, c := range all {
		switch c.Status {
		case "SUCCESS", "INFO":
		case "WARNING": // a SHOULD
			t.Logf("%s: %s: %s", scenario, c.ID, c.ErrorMessage)
		default:
			failed = append(failed, fmt.Sprintf("%s: %s: %s: %s (%s)", scenario, c.Status, c.ID, c.ErrorMessage, c.Description))
		}
	}
	return failed
}

// TestOutcome makes sure that a failing suite is seen as one.
func TestOutcome(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"server-ping-2026-01-02T03-04-05-006Z":         `[{"id":"a","status":"SUCCESS"},{"id":"b","status":"WARNING"}]`,
		"server-tools-list-2026-01-02T03-04-05-006Z":   `[{"id":"a","status":"SUCCESS"},{"id":"b","status":"FAILURE","description":"d","errorMessage":"e"}]`,
		"server-caching-2026-01-02T03-04-05-006Z":      `[{"id":"a","status":"SKIPPED"}]`,
		"server-prompts-list-2026-01-02T03-04-05-006Z": `[]`,
		"server-tasks-wire-2026-01-02T03-04-05-006Z":   `[{"id":"a","status":"FAILURE"}]`,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "checks.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	failed, ran := outcome(t, dir)
	if diff := cmp.Diff([]string{"caching", "ping", "prompts-list", "tools-list"}, ran); diff != "" {
		t.Error(diff)
	}
	want := []string{"caching: SKIPPED: a:  ()", "prompts-list: no check ran", "tools-list: FAILURE: b: e (d)"}
	if diff := cmp.Diff(want, failed); diff != "" {
		t.Error(diff)
	}
}
