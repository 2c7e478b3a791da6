package e2e

import (
	"database/sql"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/wsconn"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestAStopThatTunnelsHoldUpLosesNoAnswer: a connection that says nothing takes all the time that a
// stopping server has for its tunnels; a call whose end comes on record only then is answered
// all the same.
func TestAStopThatTunnelsHoldUpLosesNoAnswer(t *testing.T) {
	t.Parallel()
	var log written
	f := harness.New(t, harness.Options{Engine: harness.SQLite, LogTo: &log})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	f.WaitState(a.ID, "online")
	answer := make(chan harness.CallResult, 1)
	go func() {
		_, res := f.REST(f.Admin).Call(a.ID, "shell_exec", map[string]any{"command": "true"})
		answer <- res
	}()
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", "file:"+filepath.Join(f.Dir, "drover.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	lock, err := other.Begin() // the record can't be written
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	silent, err := wsconn.Dial(t.Context(), f.URL, &http.Client{Transport: &http.Transport{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close(0, "") }()
	if err := a.Answer(req.ID, okProcess); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); f.Stop() }()
	harness.Eventually(t, 20*time.Second, "the tunnels had their time", func() bool {
		return strings.Contains(log.String(), "some tunnels were cut")
	})
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	<-stopped
	select {
	case res := <-answer:
		if res.CallID != req.ID || res.State != "succeeded" {
			t.Errorf("%s %s %+v", res.CallID, res.State, res.Error)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call has no answer")
	}
}
