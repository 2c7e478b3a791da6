package e2e

import (
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// patience is how long other processes may take.
const patience = 30 * time.Second

// abreast is how many of the tests that are parallel run at once: they wait for longer than they
// compute. Two replicas each take up to 36 of the 100 connections that Postgres has by default,
// and other packages' tests take theirs. Tests that measure memory or goroutines, load the
// machine, write programs to be run or allow little time aren't parallel. Those that are say so
// in their first line: make test runs them by their names, beside the others.
const abreast = "2"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", abreast); err != nil { // -parallel counts more: it's read later
		panic(err)
	}
	os.Exit(harness.Main(m))
}

// read returns a file's text, "" where there's none.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// params are those of a tool call.
func params(name string, args map[string]any) *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: name, Arguments: args}
}
