package e2e

import (
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestRestartMidCall: a server that dies while a call is open can't know how it ended. The
// next start says so, once and for good, on both engines; a late answer changes nothing.
func TestRestartMidCall(t *testing.T) {
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			a := d.RawAgent("raw-01")
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			go d.REST(d.Admin).Do("POST", "/api/v1/calls", `{"agent_id":"raw-01","tool":"shell_exec","args":{"command":"reboot"}}`)
			req, err := a.Request()
			if err != nil {
				t.Fatal(err)
			}
			addr := strings.TrimPrefix(d.URL, "http://")
			d.Server.Kill()
			d.Serve(addr)
			check := func(when string) {
				t.Helper()
				var call harness.CallResult
				status := d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &call)
				if status != 200 || call.State != "outcome_unknown" || call.Error == nil || call.Error.Code != "outcome_unknown" {
					t.Errorf("%s: HTTP %d, the call is %s, %+v", when, status, call.State, call.Error)
				}
				rows := map[string]int{}
				for _, r := range d.AllRecords() {
					if r.CallID == req.ID {
						rows[r.Kind]++
					}
				}
				if rows["intent"] != 1 || rows["outcome"] != 1 {
					t.Errorf("%s: the record holds %v", when, rows)
				}
			}
			check("after a restart")
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			_ = a.Answer(req.ID, okProcess)
			answer := inFlight(&d.Client, a.ID)
			next := request(t, a, answer)
			if next.ID == req.ID {
				t.Error("the request was sent again")
			}
			if err := a.Answer(next.ID, okProcess); err != nil {
				t.Fatal(err)
			}
			if res := <-answer; res.State != "succeeded" {
				t.Errorf("the next call: %+v %+v", res, res.Error)
			}
			check("after a late answer")
			d.Server.Stop()
			d.Serve(addr)
			check("after a second restart")
		})
	}
}
