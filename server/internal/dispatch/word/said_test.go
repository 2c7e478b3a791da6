package word

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

func fate(st protocol.ResumeState) mux.Fate { return mux.Fate{ResumeState: st} }

func fails(code protocol.Code, reason string) *protocol.Response {
	return &protocol.Response{Error: &protocol.Error{Code: code, Reason: reason}}
}

func with(r *protocol.Response) *protocol.Response {
	r.Result = []byte(`{}`)
	return r
}

// TestContradiction: what can't all be true is found, and what an honest agent says never is.
func TestContradiction(t *testing.T) {
	zero, one := 0, 1
	lies := map[string]Said{
		"unasked cancel":               {Resp: fails(protocol.CodeCancelled, "")},
		"unasked cancel, and a result": {Resp: with(fails(protocol.CodeCancelled, "x"))},
		"timed out at once":            {Resp: fails(protocol.CodeTimedOut, ""), Limit: time.Minute, Since: time.Second, Asked: true},
		"exit codes differ":            {Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &one}), Exit: &zero, Resp: with(&protocol.Response{})},
		"ended, then cancelled":        {Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &zero}), Resp: fails(protocol.CodeCancelled, ""), Asked: true},
		"ended, then timed out":        {Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &zero}), Resp: fails(protocol.CodeTimedOut, ""), Since: time.Hour, Limit: time.Minute},
		"tool's own limit, a result":   {Refuses: true, Resp: with(fails(protocol.CodeRateLimited, "jobs"))},
		"tool's own conflict, twice":   {Refuses: true, Ran: true, Resp: fails(protocol.CodeConflict, protocol.ReasonDuplicate)},
	}
	for _, code := range []protocol.Code{
		protocol.CodeNotStarted, protocol.CodeExpired, protocol.CodeDenied, protocol.CodeUnsupported, protocol.CodeRateLimited, protocol.CodeConflict,
	} {
		lies[string(code)+", and a result"] = Said{Resp: with(fails(code, ""))}
		lies[string(code)+", and progress"] = Said{Resp: fails(code, ""), Ran: true}
		lies[string(code)+", and a process"] = Said{Resp: fails(code, ""), Fate: fate(protocol.ResumeState{State: protocol.FateRunning, PID: 5})}
		lies[string(code)+", and an age"] = Said{Resp: fails(code, ""), Fate: fate(protocol.ResumeState{State: protocol.FateDone, AgoMS: 5})}
		lies[string(code)+", and an exit code"] = Said{Resp: fails(code, ""), Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &zero})}
	}
	for name, said := range lies {
		if said.Contradiction() == "" {
			t.Errorf("%s is believed", name)
		}
	}
	done := fate(protocol.ResumeState{State: protocol.FateDone, Ended: true})
	for name, said := range map[string]Said{
		"asked cancel":                     {Resp: with(fails(protocol.CodeCancelled, "")), Asked: true},
		"the agent's own stop":             {Resp: with(fails(protocol.CodeCancelled, protocol.ReasonAgentStops))},
		"in time":                          {Resp: fails(protocol.CodeTimedOut, ""), Limit: time.Minute, Since: 53 * time.Second},
		"a short time":                     {Resp: fails(protocol.CodeTimedOut, ""), Limit: time.Second, Since: time.Millisecond},
		"a time that isn't known":          {Resp: fails(protocol.CodeTimedOut, "")},
		"a kept refusal":                   {Resp: fails(protocol.CodeNotStarted, ""), Fate: done},
		"refused while it was asked for":   {Resp: fails(protocol.CodeExpired, ""), Fate: fate(protocol.ResumeState{State: protocol.FateRunning})},
		"busy":                             {Resp: fails(protocol.CodeRateLimited, protocol.ReasonBusy)},
		"no room for a job":                {Resp: fails(protocol.CodeRateLimited, "jobs"), Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, AgoMS: 9}), Refuses: true},
		"an upload goes on elsewhere":      {Resp: fails(protocol.CodeConflict, "offset"), Ran: true, Refuses: true},
		"one exit code":                    {Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &one}), Exit: &one, Resp: with(&protocol.Response{})},
		"ended before its answer was kept": {Fate: fate(protocol.ResumeState{State: protocol.FateRunning, ExitCode: &one}), Exit: &one, Resp: with(&protocol.Response{})},
		"its answer is too large":          {Fate: fate(protocol.ResumeState{State: protocol.FateDone, Ended: true, ExitCode: &one}), Resp: fails(protocol.CodeTooLarge, "")},
		"unseen":                           {Fate: fate(protocol.ResumeState{State: protocol.FateUnseen})},
		"lost":                             {Fate: fate(protocol.ResumeState{State: protocol.FateLost, PID: 7, AgoMS: 3}), Ran: true},
	} {
		if bad := said.Contradiction(); bad != "" {
			t.Errorf("%s: %s", name, bad)
		}
	}
}

func TestReasonsOfHosts(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "enoent": "enoent", "still_running": "still_running", "agent_away": "host_says", "contradiction": "host_says",
		"journal_gone": "host_says", "Not this": "other", strings.Repeat("a", 41): "other",
	} {
		if got := Reason(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
