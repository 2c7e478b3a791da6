package conformance

import (
	"os"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// launch starts the programs of a build with these tags on an empty store: the database at
// that URL, or SQLite when it's empty.
func launch(t *testing.T, tags, database string) *harness.Deployment {
	t.Helper()
	return harness.Launch(t, harness.Build(t, tags), harness.LaunchOptions{Engine: harness.SQLite, DatabaseURL: database})
}
