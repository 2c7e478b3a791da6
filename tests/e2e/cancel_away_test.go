package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// cancelledAway begins a call of an hour, cuts its agent off, and ends it by end. It returns the
// call's id once its outcome is known to be unknown.
func cancelledAway(t *testing.T, f *harness.Fleet, a *harness.RawAgent, token string, end func(id string)) string {
	t.Helper()
	connect(t, a, "journal.boot")
	var res harness.CallResult
	f.REST(token).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": a.ID, "tool": "shell_exec", "args": map[string]any{"command": "sleep 60", "timeout_seconds": 3600}, "wait_seconds": 1}, &res)
	if _, err := a.Request(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	f.WaitState(a.ID, "offline")
	end(res.CallID)
	return res.CallID
}

// toldOnReturn says of a call that it runs, waits for its cancel and answers that. It doesn't
// answer the first few questions.
func toldOnReturn(t *testing.T, a *harness.RawAgent, id string, silent int) {
	t.Helper()
	for {
		frame, err := a.Next("")
		if err != nil {
			t.Fatalf("no cancel came: %v", err)
		}
		switch fr := frame.(type) {
		case *protocol.Resume:
			if silent--; silent >= 0 {
				continue
			}
			if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":"journal.boot","states":[{"id":%q,"state":"running"}]}`, id)); err != nil {
				t.Fatal(err)
			}
		case *protocol.Cancel:
			if fr.ID != id {
				t.Fatalf("a cancel of %s", fr.ID)
			}
			if err := a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"cancelled","message":"ended"},"took_us":1}`, id)); err != nil {
				t.Fatal(err)
			}
			return
		case *protocol.Request:
			t.Fatalf("%s was sent again", fr.ID)
		}
	}
}

// stands checks that a call's outcome is unknown and stays so, with what its agent said beside it.
func standsUnknown(t *testing.T, f *harness.Fleet, id, reason string, told bool) {
	t.Helper()
	var res struct {
		State    string
		Error    *struct{ Code, Reason, Message string }
		Evidence string
	}
	harness.Eventually(t, 20*time.Second, "what its agent said is beside it", func() bool {
		f.REST(f.Admin).JSON("GET", "/api/v1/calls/"+id, nil, &res)
		return !told || res.Evidence != ""
	})
	if res.State != "outcome_unknown" || res.Error == nil || res.Error.Reason != reason || !strings.Contains(res.Error.Message, "cancel") {
		t.Errorf("it's %s %+v", res.State, res.Error)
	}
	if told && !strings.Contains(res.Evidence, "cancelled") {
		t.Errorf("evidence: %q", res.Evidence)
	}
}

// TestACancelWhoseAgentIsAway: a call whose end was asked for isn't waited for as long as it might
// have run: it ends as unknown. Its agent is told to end it when it's back, by whatever right it
// was ended, and what it says then stands beside the outcome.
func TestACancelWhoseAgentIsAway(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			f := harness.New(t, harness.Options{Engine: engine, ResumeWait: time.Hour, CancelWait: 2 * time.Second})
			away := func(id string) {
				if res := await(t, &f.Client, id); res.State != "outcome_unknown" {
					t.Errorf("it's %s: %+v", res.State, res.Error)
				}
			}
			a := f.RawAgent("raw-01")
			id := cancelledAway(t, f, a, f.Admin, func(id string) {
				began := time.Now()
				var res harness.CallResult
				f.REST(f.Admin).JSON("POST", "/api/v1/calls/"+id+"/cancel", map[string]any{}, &res)
				if res.State != "outcome_unknown" || time.Since(began) > 15*time.Second {
					t.Errorf("after %s the cancel is answered: %s %+v", time.Since(began), res.State, res.Error)
				}
			})
			standsUnknown(t, f, id, "agent_away", false)
			comeBack(t, a)
			toldOnReturn(t, a, id, 0)
			standsUnknown(t, f, id, "agent_away", true)
			a.Close()
			f.WaitState(a.ID, "offline")

			token, pat := f.PAT("doomed", "all", "all", false)
			id = cancelledAway(t, f, a, token, func(id string) {
				if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+pat, ""); status/100 != 2 {
					t.Fatalf("revoke: %d %s", status, b)
				}
				away(id)
			})
			comeBack(t, a)
			toldOnReturn(t, a, id, 0)
			standsUnknown(t, f, id, "agent_away", true)
			a.Close()
		})
	}
}

// TestACancelWhoseAgentIsSilent: so it is where the agent is back and doesn't say what became of
// the call; it's told to end it as soon as it does.
func TestACancelWhoseAgentIsSilent(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: time.Hour, CancelWait: 2 * time.Second})
	a := f.RawAgent("raw-01")
	id := cancelledAway(t, f, a, f.Admin, func(id string) {
		go f.REST(f.Admin).Do("POST", "/api/v1/calls/"+id+"/cancel", "{}")
		harness.Eventually(t, 20*time.Second, "the cancel is on record", func() bool {
			for _, r := range f.AllRecords() {
				if r.Kind == "cancel" && r.CallID == id {
					return true
				}
			}
			return false
		})
	})
	comeBack(t, a)
	defer a.Close()
	toldOnReturn(t, a, id, 1)
	standsUnknown(t, f, id, "agent_silent", true)
}

// TestALateQuestionEndsNothing: what is asked for after its outcome is on record as unknown, and
// that nobody cancelled, goes on when the server that asked stops.
func TestALateQuestionEndsNothing(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: time.Second})
	a := f.RawAgent("raw-01")
	id := cancelledAway(t, f, a, f.Admin, func(id string) { await(t, &f.Client, id) })
	comeBack(t, a)
	defer a.Close()
	asked(t, a, id)
	if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":"journal.boot","states":[{"id":%q,"state":"running"}]}`, id)); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(fmt.Sprintf(`{"type":"progress","id":%q,"seq":1,"message":"on"}`, id)); err != nil {
		t.Fatal(err)
	}
	go f.Stop()
	for {
		frame, err := a.Next("")
		if err != nil {
			return
		}
		if c, ok := frame.(*protocol.Cancel); ok {
			t.Fatalf("%s was cancelled", c.ID)
		}
	}
}
