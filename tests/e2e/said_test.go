package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestAnAgentThatContradictsItself: an answer whose parts can't all be true is no end: the
// outcome is unknown, its result isn't shown, and the reason is said.
func TestAnAgentThatContradictsItself(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for name, frames := range map[string][]string{
		"nothing started, and a result": {`{"type":"response","id":ID,"result":` + okProcess + `,"error":{"code":"not_started","message":"x"},"took_us":1}`},
		"busy, and a result":            {`{"type":"response","id":ID,"result":` + okProcess + `,"error":{"code":"rate_limited","reason":"busy","message":"x"},"took_us":1}`},
		"expired, and progress":         {`{"type":"progress","id":ID,"seq":1,"message":"half done"}`, `{"type":"response","id":ID,"error":{"code":"expired","message":"x"},"took_us":1}`},
		"nothing started, and progress": {`{"type":"progress","id":ID,"seq":1,"message":"half done"}`, `{"type":"response","id":ID,"error":{"code":"not_started","message":"x"},"took_us":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := f.RawAgent(strings.Map(func(r rune) rune {
				if r < 'a' || r > 'z' {
					return '-'
				}
				return r
			}, name))
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			answer := inFlight(&f.Client, a.ID)
			req := request(t, a, answer)
			for _, frame := range frames {
				if err := a.Send(strings.Replace(frame, "ID", fmt.Sprintf("%q", req.ID), 1)); err != nil {
					t.Fatal(err)
				}
			}
			if got := <-answer; got.State != "outcome_unknown" || got.Error == nil || got.Error.Reason != "contradiction" || len(got.Result) > 0 {
				t.Errorf("%+v %+v", got, got.Error)
			}
		})
	}
}

// TestWhatAHostSaysIsMarked: the words of a host stand in quotes as a host's, in errors, in
// what's known of a call whose connection was cut, and in evidence; numbers that can't be
// aren't repeated, and what contradicts itself proves nothing.
func TestWhatAHostSaysIsMarked(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	answer := inFlight(&f.Client, a.ID)
	req := request(t, a, answer)
	const forged = `it's safe to call again. Drover: nothing ran`
	if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"tool_failed","message":%q},"took_us":9007199254740991}`, req.ID, `" `+forged)); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got.Error == nil || got.Error.Message != `raw-01 says: "' `+forged+`"` {
		t.Errorf("a host's error: %+v %+v", got, got.Error)
	}
	var list struct {
		Calls []struct {
			TookUS int64 `json:"took_us"`
		} `json:"calls"`
	}
	if f.REST(f.Admin).JSON("GET", "/api/v1/calls?agent_id=raw-01", nil, &list); len(list.Calls) != 1 || list.Calls[0].TookUS != 0 {
		t.Errorf("the time it can't have taken: %+v", list)
	}
	for _, c := range []struct {
		says, state, reason string
		has                 []string
		not                 []string
	}{
		{`"state":"lost","note":"` + forged + `"`, "outcome_unknown", "agent_restarted", []string{"the host says: ", `it notes: "` + forged + `"`}, nil},
		{`"state":"lost","pid":99999999999,"ago_ms":9007199254740991`, "outcome_unknown", "agent_restarted",
			[]string{"the host says: ", "can't be one", "before the call was made"}, []string{"99999999999", "2501999"}},
		{`"state":"lost","ended":true,"exit_code":-2147483650`, "outcome_unknown", "agent_restarted", []string{"exit code that it gives can't be one"}, []string{"2147483650"}},
		{`"state":"lost","exit_code":0`, "outcome_unknown", "contradiction", []string{"contradicts itself"}, []string{"exit code 0"}},
		{`"state":"unseen","pid":42`, "outcome_unknown", "contradiction", []string{"contradicts itself"}, []string{"42"}},
		{`"state":"unseen","note":"x"`, "outcome_unknown", "contradiction", []string{"contradicts itself"}, []string{`"x"`}},
		{`"state":"unseen"`, "not_started", "", []string{"nothing ran"}, nil},
	} {
		id := begin(t, &f.Client, a.ID, map[string]any{"command": "true"})
		if _, err := a.Request(); err != nil {
			t.Fatal(err)
		}
		a.Close()
		comeBack(t, a)
		tellFate(t, a, id, c.says)
		got := await(t, &f.Client, id)
		if got.State != c.state || got.Error == nil || got.Error.Reason != c.reason {
			t.Errorf("%s: %+v %+v", c.says, got, got.Error)
			continue
		}
		for _, s := range c.has {
			if !strings.Contains(got.Error.Message, s) {
				t.Errorf("%s: %q isn't in %q", c.says, s, got.Error.Message)
			}
		}
		for _, s := range c.not {
			if strings.Contains(got.Error.Message, s) {
				t.Errorf("%s: %q is in %q", c.says, s, got.Error.Message)
			}
		}
	}
}

// comeBack connects an agent that will be asked for a call: the question is left to read.
func comeBack(t *testing.T, a *harness.RawAgent) {
	t.Helper()
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(`{"type":"resume","boot":"journal.boot"}`); err != nil {
		t.Fatal(err)
	}
}

// asked waits for the server's question for one call; it may ask for others before, whose
// outcome is on record as unknown.
func asked(t *testing.T, a *harness.RawAgent, id string) {
	t.Helper()
	for {
		frame, err := a.Next(protocol.TypeResume)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(frame.(*protocol.Resume).IDs, id) {
			return
		}
	}
}

// tellFate answers the server's question for one call.
func tellFate(t *testing.T, a *harness.RawAgent, id, says string) {
	t.Helper()
	asked(t, a, id)
	if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":"journal.boot","states":[{"id":%q,%s}]}`, id, says)); err != nil {
		t.Fatal(err)
	}
}

// TestEvidenceIsMarked: what a host says after the outcome is on record as unknown stands
// beside it as the host's.
func TestEvidenceIsMarked(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: time.Second})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	id := begin(t, &f.Client, a.ID, map[string]any{"command": "true"})
	if _, err := a.Request(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if got := await(t, &f.Client, id); got.State != "outcome_unknown" || got.Error.Reason != "agent_away" {
		t.Fatalf("%+v %+v", got, got.Error)
	}
	comeBack(t, a)
	defer a.Close()
	tellFate(t, a, id, `"state":"lost","ago_ms":1000000000000,"note":"Drover: nothing ran"`)
	const want = `the host says: it had begun, the time that it gives for the beginning is before the call was made, and it notes: "Drover: nothing ran"`
	harness.Eventually(t, 20*time.Second, "evidence", func() bool { return await(t, &f.Client, id).Evidence != "" })
	if got := await(t, &f.Client, id).Evidence; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestAnAgentThatIsThereAndSilent: of an agent that is connected and doesn't say what became
// of a call it isn't said that it's away.
func TestAnAgentThatIsThereAndSilent(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: 3 * time.Second})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	id := begin(t, &f.Client, a.ID, map[string]any{"command": "true"})
	if _, err := a.Request(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	comeBack(t, a)
	defer a.Close()
	for range 2 { // it's asked more than once
		if _, err := a.Next("resume"); err != nil {
			break
		}
	}
	if got := await(t, &f.Client, id); got.State != "outcome_unknown" || got.Error.Reason != "agent_silent" || !strings.Contains(got.Error.Message, "connected again") {
		t.Errorf("%+v %+v", got, got.Error)
	}
}
