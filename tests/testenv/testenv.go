// Package testenv says what a test needs from the machine it runs on.
package testenv

import (
	"os"
	"path"
	"strings"
	"testing"
)

// Require skips the test when something it needs isn't there; why says what is missing and
// how to get it. With DROVER_TEST_REQUIRE=all, where nothing may be skipped, it fails.
func Require(t testing.TB, there bool, why string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("DROVER_TEST_REQUIRE") == "all":
		t.Fatalf("DROVER_TEST_REQUIRE=all, but %s", why)
	default:
		t.Skip(why)
	}
}

// Runtime gives the agents of this process, and of those that it starts, a runtime folder of
// their own until remove is called. It's in memory where the system has that: on others an
// agent does without. A test program that such a process starts has that one's.
func Runtime() (remove func()) {
	const name = "/dev/shm/drover-test-"
	if strings.HasPrefix(os.Getenv("RUNTIME_DIRECTORY"), name) {
		return func() {}
	}
	dir, err := os.MkdirTemp(path.Dir(name), path.Base(name))
	if err != nil {
		return func() {}
	}
	_ = os.Setenv("RUNTIME_DIRECTORY", dir)
	return func() { _ = os.RemoveAll(dir) }
}

// Main runs a package's tests with a Runtime, and returns the exit code.
func Main(m *testing.M) int {
	defer Runtime()()
	return m.Run()
}
