package harness

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// TestFollowers: the tests that leave the engine open are written down, under the name that go
// test -run takes, and those that choose it aren't: the former alone run once more on the other
// engine.
func TestFollowers(t *testing.T) {
	programs := Build(t, "")
	for _, tc := range []struct {
		name    string
		start   func(t *testing.T)
		follows bool
	}{
		{"a server in this process", func(t *testing.T) { New(t, Options{}) }, true},
		{"a server of its own", func(t *testing.T) { Launch(t, programs, LaunchOptions{}) }, true},
		{"an engine chosen, in this process", func(t *testing.T) { New(t, Options{Engine: SQLite}) }, false},
		{"an engine chosen", func(t *testing.T) { Launch(t, programs, LaunchOptions{Engine: SQLite}) }, false},
		{"a database of the test's own", func(t *testing.T) { Launch(t, programs, LaunchOptions{DatabaseURL: PostgresSchema(t)}) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "followers")
			t.Setenv("DROVER_TEST_FOLLOWERS", file)
			tc.start(t)
			want := ""
			if tc.follows {
				want = "TestFollowers\n"
			}
			got, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if string(got) != want {
				t.Errorf("written down: %q, want %q", got, want)
			}
		})
	}
}
