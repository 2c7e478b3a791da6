package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// restarted is what an agent says, after the server was killed and started again, of a call
// that was open then, and what has to become of the call.
type restarted struct {
	boot, says string // says is the rest of the state: `"state":…`
	answers    bool   // with a result
	state      string
	reason     string
}

// TestRestartMidCall: a server that is killed while a call is open asks the agent for it
// after its next start, sends nothing again, and ends the call as the agent's word allows,
// once and for good.
func TestRestartMidCall(t *testing.T) {
	t.Parallel()
	cases := map[string]restarted{
		"it ran to its end":       {"journal.boot", `"state":"done","exit_code":0`, true, "succeeded", ""},
		"it still runs":           {"journal.boot", `"state":"running","pid":42`, true, "succeeded", ""},
		"it never began":          {"journal.boot", `"state":"unseen"`, false, "not_started", ""},
		"unseen after a reboot":   {"journal.other", `"state":"unseen"`, false, "outcome_unknown", "journal_gone"},
		"the agent was restarted": {"journal.boot", `"state":"lost","pid":42,"ago_ms":5000,"note":"the agent was restarted"`, false, "outcome_unknown", "agent_restarted"},
	}
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			open := map[string]*protocol.Request{}
			agents := map[string]*harness.RawAgent{}
			n := 0
			for name := range cases {
				n++
				a := d.RawAgent(fmt.Sprintf("raw-%02d", n))
				agents[name] = a
				connect(t, a, "journal.boot")
				defer a.Close()
				go d.REST(d.Admin).Do("POST", "/api/v1/calls", `{"agent_id":"`+a.ID+`","tool":"shell_exec","args":{"command":"reboot"}}`)
				req, err := a.Request()
				if err != nil {
					t.Fatal(err)
				}
				open[name] = req
			}
			addr := strings.TrimPrefix(d.URL, "http://")
			d.Server.Kill()
			d.Serve(addr)
			for name, c := range cases {
				t.Run(name, func(t *testing.T) { c.resume(t, d, agents[name], open[name]) })
			}
			d.Server.Stop()
			d.Serve(addr)
			for name, c := range cases {
				c.check(t, d, open[name], name+", after a second restart")
			}
		})
	}
}

// connect connects a raw agent that names its journal.
func connect(t *testing.T, a *harness.RawAgent, boot string) {
	t.Helper()
	a.Boot = boot
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
}

func (c restarted) resume(t *testing.T, d *harness.Deployment, a *harness.RawAgent, req *protocol.Request) {
	var call harness.CallResult
	if d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &call); call.State != "dispatched" {
		t.Errorf("before its agent is back the call is %s: %+v", call.State, call.Error)
	}
	connect(t, a, c.boot)
	v, err := a.Next(protocol.TypeResume)
	if err != nil {
		t.Fatal(err)
	}
	if ids := v.(*protocol.Resume).IDs; len(ids) != 1 || ids[0] != req.ID {
		t.Fatalf("the server asks for %v, the open call is %s", ids, req.ID)
	}
	if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":%q,"states":[{"id":%q,%s}]}`, c.boot, req.ID, c.says)); err != nil {
		t.Fatal(err)
	}
	if c.answers {
		if err := a.Answer(req.ID, okProcess); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, 20*time.Second, "the call's end", func() bool {
		d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &call)
		return call.State != "dispatched" && call.State != "running"
	})
	c.check(t, d, req, "after the agent's word")
	_ = a.Answer(req.ID, okProcess) // late, or twice
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
	c.check(t, d, req, "after a late answer")
}

func (c restarted) check(t *testing.T, d *harness.Deployment, req *protocol.Request, when string) {
	t.Helper()
	var call harness.CallResult
	status := d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &call)
	reason := ""
	if call.Error != nil {
		reason = call.Error.Reason
	}
	if status != 200 || call.State != c.state || reason != c.reason {
		t.Errorf("%s: HTTP %d, the call is %s (%+v), want %s %s", when, status, call.State, call.Error, c.state, c.reason)
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
