package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAJournalThatIsPutBack: an agent is killed while a command runs, and its journal is put
// back in place as it was before the call, on the same running host. The agent doesn't know
// the call then, but it isn't taken at its word: the call may have run, and its key doesn't
// run it again.
func TestAJournalThatIsPutBack(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]bool{"put back": true, "left alone": false} {
		t.Run(name, func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
			state := filepath.Join(t.TempDir(), "state")
			host := hostOn(t, d, state, d.Run("enroll", "create", "--agent-id", "web-01"))
			d.WaitState("web-01", "online")
			withKey(&d.Client, "web-01", filepath.Join(t.TempDir(), "earlier"), "earlier")
			path := filepath.Join(state, "calls.journal")
			before := []byte(read(t, path))

			h := newHeld(t)
			ask := map[string]any{"agent_id": "web-01", "tool": "shell_exec", "args": h.args(), "wait_seconds": 1, "idempotency_key": "k"}
			var first, second harness.CallResult
			d.REST(d.Admin).JSON("POST", "/api/v1/calls", ask, &first)
			h.begun(t)
			host.Kill()
			if back {
				overwrite(t, path, before)
			}
			hostOn(t, d, state, "")
			res, reason := await(t, &d.Client, first.CallID), "agent_restarted"
			if back {
				reason = "journal_gone"
			}
			if res.State != "outcome_unknown" || res.Error == nil || res.Error.Reason != reason {
				t.Errorf("a call that ran: %s %+v", res.State, res.Error)
			}
			d.REST(d.Admin).JSON("POST", "/api/v1/calls", ask, &second)
			h.release(t)
			if second.CallID != first.CallID || second.State != "outcome_unknown" || h.lines() != 1 {
				t.Errorf("with its key again: call %s %s, the first is %s; its effect is there %d times", second.CallID, second.State, first.CallID, h.lines())
			}
		})
	}
}

// overwrite puts bytes into a file that stays the same file.
func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}
