package capability

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/agent/internal/guard"
)

// What an interrupted upload left goes after a day, unless one goes on with it.
func TestAPartIsRemovedAfterItsLife(t *testing.T) {
	for _, goesOn := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			files, err := guard.NewFiles(nil)
			if err != nil {
				t.Fatal(err)
			}
			target := filepath.Join(t.TempDir(), "f")
			place, err := files.Resolve(target)
			if err != nil {
				t.Fatal(err)
			}
			defer place.Close()
			part := place.Beside(partName("pat:1", "mine"))
			if err := os.WriteFile(part.Path(), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			var p parts
			p.keep(files, target, part, slog.New(slog.DiscardHandler))
			time.Sleep(partLife - time.Hour) // the bubble's time, which costs none
			if _, err := os.Stat(part.Path()); err != nil {
				t.Errorf("gone too early: %v", err)
			}
			if goesOn {
				if err := os.Chtimes(part.Path(), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			if _, err := os.Stat(part.Path()); os.IsNotExist(err) == goesOn {
				t.Errorf("goes on %v: %v", goesOn, err)
			}
		})
	}
}
