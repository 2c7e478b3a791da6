package browser

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// markup would run if a page took it for more than text. It fits into a kernel's hostname.
const markup = `<img src=x onerror="window.pwned=1">`

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// browser is what a test of the page needs; the test is skipped, or fails, without.
func browser(t *testing.T) (node, chromium string) {
	t.Helper()
	node = program(t, "node", "install Node.js 20.19 or newer")
	chromium = program(t, "chromium", "install Debian's chromium")
	_, err := os.Stat("node_modules/playwright-core")
	testenv.Require(t, err == nil, "playwright-core isn't installed: run npm ci in tests/browser")
	_, err = os.Stat("../../web/dist/index.html")
	testenv.Require(t, err == nil, "the page isn't built: run make web")
	return node, chromium
}

func TestPage(t *testing.T) {
	node, chromium := browser(t)

	s := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	prefix, planted := named(markup)
	s.HostAt("web-01", s.URL, prefix)
	s.Run("agents", "set", "web-01", "--description", markup, "--label", "env=prod")

	queueOne(t, s)

	cmd := exec.CommandContext(t.Context(), node, "page.mjs")
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium, "URL="+s.URL, "PAT="+s.Admin, "MARKUP="+markup, "PLANTED="+planted)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("%s", &out)
}

// queueOne makes a call that waits for a host, which was there once and is offline.
func queueOne(t *testing.T, s *harness.Deployment) {
	t.Helper()
	a := s.RawAgent("db-01")
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
	s.WaitState("db-01", "online")
	a.Close()
	s.WaitState("db-01", "offline")
	body := map[string]any{"agent_id": "db-01", "tool": "shell_exec", "args": map[string]string{"command": "systemctl restart postgresql"}, "wait_seconds": 1, "queue_for_seconds": 7200}
	var call struct {
		State string `json:"state"`
	}
	if status := s.REST(s.Admin).JSON("POST", "/api/v1/calls", body, &call); status != 202 || call.State != "queued" {
		t.Fatalf("HTTP %d, state %s", status, call.State)
	}
}

func program(t *testing.T, name, how string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	testenv.Require(t, err == nil, "there's no "+name+": "+how)
	return path
}

// named returns a command before which a program runs on a host of this name, where this
// user may make a namespace for it; planted is then "hostname".
func named(hostname string) (prefix []string, planted string) {
	unshare, err := exec.LookPath("unshare")
	if runtime.GOOS != "linux" || os.Geteuid() != 0 || err != nil {
		return nil, ""
	}
	return []string{unshare, "--uts", "sh", "-c", `printf %s "$0" >/proc/sys/kernel/hostname && exec "$@"`, hostname}, "hostname"
}
