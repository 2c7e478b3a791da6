package word

import (
	"slices"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Said is what an agent said of one call, and what Drover knows of it by itself.
type Said struct {
	Fate mux.Fate           // its answer to the question for it, after a cut
	Resp *protocol.Response // nil: none came
	Exit *int               // the exit code in the result
	Ran  bool               // it has sent progress

	// Asked: somebody may have told the agent to end it.
	Asked bool
	// Refuses: its tool may refuse, with conflict or rate_limited, after the call has begun.
	Refuses bool
	// Limit is the call's own time, 0 if it isn't known. Since is how long ago it was sent.
	Limit, Since time.Duration
}

// Begun tells that the agent has said that the call began. That it has ended doesn't say so: a
// refusal is kept like an answer.
func (s *Said) Begun() bool {
	return s.Ran || s.Fate.PID != 0 || s.Fate.ExitCode != nil || s.Fate.AgoMS != 0
}

// Contradiction tells where what an agent said can't all be true, among itself or beside what
// Drover knows, or is "". Then it proves nothing: how the call ended isn't known.
func (s *Said) Contradiction() string {
	fate, traces := &s.Fate, s.Fate.PID != 0 || s.Fate.ExitCode != nil || s.Fate.AgoMS != 0
	switch {
	case fate.State == protocol.FateUnseen && (traces || fate.Ended || fate.Note != ""):
		return "it never saw the call, and knows things of it"
	case fate.State == protocol.FateUnseen && s.Ran:
		return "it never saw the call, and told how it goes"
	case fate.State == protocol.FateRunning && fate.Ended:
		return "the call runs, and has ended"
	case fate.State == protocol.FateLost && fate.ExitCode != nil && !fate.Ended:
		return "the call has an exit code, and hasn't ended"
	case fate.ExitCode != nil && s.Exit != nil && *fate.ExitCode != *s.Exit:
		return "the call has two exit codes"
	case s.Resp == nil || s.Resp.Error == nil:
		return ""
	case s.nothingRan(s.Resp.Error):
		return s.began()
	default:
		return s.ended(s.Resp.Error)
	}
}

// nothingRan tells the errors by which an agent says that it has begun nothing.
func (s *Said) nothingRan(e *protocol.Error) bool {
	switch e.Code {
	case protocol.CodeNotStarted, protocol.CodeExpired, protocol.CodeDenied, protocol.CodeUnsupported:
		return true
	case protocol.CodeRateLimited:
		return !s.Refuses || e.Reason == protocol.ReasonBusy || len(s.Resp.Result) > 0
	case protocol.CodeConflict:
		return !s.Refuses || e.Reason == protocol.ReasonDuplicate
	default:
		return false
	}
}

// began tells how a call began of which the agent says that it didn't.
func (s *Said) began() string {
	switch {
	case len(s.Resp.Result) > 0:
		return "nothing was started, and here is its result"
	case s.Fate.PID != 0 || s.Fate.ExitCode != nil:
		return "nothing was started, and it had a process"
	case s.Ran:
		return "nothing was started, and it told how it goes"
	case s.Begun():
		return "nothing was started, and it had begun"
	default:
		return ""
	}
}

// ended tells why a call can't have been ended before its own end.
func (s *Said) ended(e *protocol.Error) string {
	switch e.Code {
	case protocol.CodeCancelled:
		switch {
		case s.Fate.ExitCode != nil:
			return "it was cancelled, and had ended by itself"
		case !s.Asked && e.Reason != protocol.ReasonAgentStops:
			return "it was cancelled, and nobody asked for that"
		}
	case protocol.CodeTimedOut:
		switch {
		case s.Fate.ExitCode != nil:
			return "its time was over, and it had ended by itself"
		case s.Limit > 0 && s.Since < s.Limit-s.Limit/10-clockSlack:
			return "its time was over, long before it was"
		}
	}
	return ""
}

// clockSlack is how much two clocks may differ over a call, beside a tenth of its time.
const clockSlack = 2 * time.Second

// Since is how long ago something was, also where this host slept meanwhile: the clock that
// nobody sets stands still then.
func Since(at, now time.Time) time.Duration {
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// own are the reasons that are Drover's to give.
var own = []string{
	"agent_away", "agent_calls", fleet.ReasonAgentFault, "agent_old", "agent_queue", "agent_restarted", "agent_silent", "bad_result", "client_gone", "contradiction",
	"journal_gone", "open_bytes", "principal_calls", "principal_open_bytes", "principal_queue", "principal_waiting", "record", "removed", "server_fault", "tool_gone",
}

// Reason is an agent's reason as it may be shown: of the form of one, and none of Drover's own.
func Reason(s string) string {
	odd := func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	switch {
	case len(s) > 40 || slices.ContainsFunc([]rune(s), odd):
		return "other"
	case slices.Contains(own, s):
		return "host_says"
	default:
		return s
	}
}
