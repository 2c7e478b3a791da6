package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestAnAnswerThatCantBeTrue: an end that an agent can't truly tell is none: the outcome is
// unknown. Drover's own reasons aren't a host's to give.
func TestAnAnswerThatCantBeTrue(t *testing.T) {
	f := harness.New(t, harness.Options{})
	const progress = `{"type":"progress","id":ID,"seq":1,"message":"half done"}`
	fails := func(code string) string {
		return `{"type":"response","id":ID,"error":{"code":"` + code + `","message":"x"},"took_us":1}`
	}
	both := func(code string) string {
		return strings.Replace(fails(code), `"error"`, `"result":`+okProcess+`,"error"`, 1)
	}
	for i, c := range []struct {
		fate   string // its connection is cut and it's asked; "" for none
		frames []string
		reason string
	}{
		{"", []string{fails("cancelled")}, "contradiction"},
		{"", []string{both("cancelled")}, "contradiction"},
		{"", []string{fails("timed_out")}, "contradiction"},
		{"", []string{progress, fails("rate_limited")}, "contradiction"},
		{"", []string{progress, fails("denied")}, "contradiction"},
		{"", []string{both("denied")}, "contradiction"},
		{"", []string{both("conflict")}, "contradiction"},
		{"", []string{both("unsupported")}, "contradiction"},
		{"", []string{strings.Replace(fails("outcome_unknown"), `"message"`, `"reason":"agent_away","message"`, 1)}, "host_says"},
		{`"state":"running","pid":123,"ago_ms":100`, []string{fails("rate_limited")}, "contradiction"},
		{`"state":"running","ago_ms":100`, []string{fails("not_started")}, "contradiction"},
		{`"state":"done","ended":true,"ago_ms":100`, []string{fails("expired")}, "contradiction"},
		{`"state":"done","ended":true,"exit_code":1,"pid":4`, []string{`{"type":"response","id":ID,"result":` + okProcess + `,"took_us":1}`}, "contradiction"},
		{`"state":"done","ended":true,"exit_code":0,"pid":4`, []string{fails("timed_out")}, "contradiction"},
		{`"state":"done","ended":true,"exit_code":0,"pid":4`, []string{fails("cancelled")}, "contradiction"},
	} {
		a := f.RawAgent(fmt.Sprintf("raw-%02d", i))
		connect(t, a, "journal.boot")
		answer := inFlight(&f.Client, a.ID)
		req := request(t, a, answer)
		if c.fate != "" {
			a.Close()
			comeBack(t, a)
			tellFate(t, a, req.ID, c.fate)
		}
		for _, frame := range c.frames {
			if err := a.Send(strings.Replace(frame, "ID", fmt.Sprintf("%q", req.ID), 1)); err != nil {
				t.Fatal(err)
			}
		}
		if got := <-answer; got.State != "outcome_unknown" || got.Error == nil || got.Error.Reason != c.reason || len(got.Result) > 0 {
			t.Errorf("%s %s: %+v %+v", c.fate, c.frames, got, got.Error)
		}
		a.Close()
	}
}

// TestAStoppedAgentEndsItsCalls: an agent that is stopped says so of the calls that it ends:
// nobody asked for that, and it's believed.
func TestAStoppedAgentEndsItsCalls(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	a := f.Agent("web-01")
	id := begin(t, &f.Client, "web-01", map[string]any{"command": "echo begun; sleep 4290", "timeout_seconds": 600})
	harness.Eventually(t, 20*time.Second, "the call runs", func() bool { return stateOf(&f.Client, id) != "queued" })
	a.Stop()
	if got := await(t, &f.Client, id); got.State != "cancelled" || got.Error == nil || got.Error.Reason != "agent_stops" || got.Stdout() != "begun\n" {
		t.Errorf("%+v %+v", got, got.Error)
	}
}

// TestAStoppedAgentSaysWhatItKnows: the answer of a call that had ended before its agent was
// stopped goes out, however slow the line: nobody has it afterwards.
func TestAStoppedAgentSaysWhatItKnows(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	door := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	a := f.Agent("web-01", func(c *agent.Config) { c.Server = door.URL() })
	door.Shape(fault.Link{Rate: 200 << 10, Queue: 1 << 10}, fault.Link{})
	before, _ := door.Passed()
	id := begin(t, &f.Client, "web-01", map[string]any{"command": "head -c 500000 /dev/zero | tr '\\0' x", "max_output": 1 << 20})
	harness.Eventually(t, 20*time.Second, "its answer is on its way", func() bool { up, _ := door.Passed(); return up > before+100_000 })
	a.Stop()
	if got := await(t, &f.Client, id); got.State != "succeeded" || len(got.Stdout()) != 500_000 {
		t.Errorf("%s, %d bytes, %+v", got.State, len(got.Stdout()), got.Error)
	}
}
