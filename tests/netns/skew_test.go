//go:build linux

package netns

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestClocksThatDiffer (T-10): an agent whose clock is wrong, even by a year, is let in and
// called like any other; operators see by how much, and the record goes by the server's
// clock.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"fast-01": 10 * time.Minute, "slow-01": -10 * time.Minute, "future-01": 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := harness.New(t, harness.Options{KeepAlive: time.Second})
			began := time.Now()
			a := f.RawAgent(name)
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			facts, err := json.Marshal(a.Facts)
			if err != nil {
				t.Fatal(err)
			}
			caps := `[{"name":"shell_exec","version":1}]`
			update := fmt.Sprintf(`{"type":"facts","facts":%s,"clock_ahead_ms":%d},"capabilities":%s}`, facts[:len(facts)-1], ahead.Milliseconds(), caps)
			if err := a.Send(update); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, 30*time.Second, "the difference is shown", func() bool {
				var v struct {
					Ahead int64 `json:"clock_ahead_ms"`
				}
				return f.REST(f.Admin).JSON("GET", "/api/v1/agents/"+name, nil, &v) == 200 && v.Ahead == ahead.Milliseconds()
			})
			answer := make(chan harness.CallResult, 1)
			go func() {
				_, res := f.REST(f.Admin).Call(name, "shell_exec", map[string]any{"command": "date"})
				answer <- res
			}()
			req, err := a.Next(protocol.TypeRequest)
			if err != nil {
				t.Fatal(err)
			}
			result := `{"exit_code":0,"stdout":"hi\n","stderr":"","stdout_bytes":3,"stderr_bytes":0,"duration_ms":0}`
			if err := a.Answer(req.(*protocol.Request).ID, result); err != nil {
				t.Fatal(err)
			}
			if res := <-answer; res.State != "succeeded" {
				t.Errorf("a call: %+v %+v", res, res.Error)
			}
			var list struct {
				Rows []struct {
					Kind string    `json:"kind"`
					At   time.Time `json:"at"`
				} `json:"rows"`
			}
			if status := f.REST(f.Admin).JSON("GET", "/api/v1/audit?limit=200", nil, &list); status != 200 || len(list.Rows) < 3 {
				t.Fatalf("audit: %d, %d rows", status, len(list.Rows))
			}
			for _, row := range list.Rows {
				if row.At.Before(began.Add(-time.Minute)) || row.At.After(time.Now().Add(time.Minute)) {
					t.Errorf("a row of kind %s is dated %s", row.Kind, row.At)
				}
			}
		})
	}
}
