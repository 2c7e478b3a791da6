// Package word judges what hosts say of calls, and shows it as theirs: it isn't believed
// against itself.
package word

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	// maxSaid bounds the text of a host within a message, in bytes.
	maxSaid = 2048
	// maxNote bounds a host's note within a line of evidence, in bytes.
	maxNote = 240
	// ClocksApart is how much earlier than its sending a host may say that a call began: its
	// clock may have been set.
	ClocksApart = time.Minute
)

// Says is a host's text as Drover may show it: nobody takes it for Drover's own.
func Says(id fleet.AgentID, s string) string {
	if s = text.Line(s, maxSaid); s == "" {
		return fmt.Sprintf("agent %s gave no reason", id)
	}
	return fmt.Sprintf("%s says: %s", id, text.Quote(s, maxSaid))
}

// sentSince is how long ago a call was made: what a host says of it can't be older.
func sentSince(id fleet.CallID) time.Duration {
	u, err := uuid.Parse(string(id))
	if err != nil || u.Version() != 7 {
		return math.MaxInt64
	}
	return time.Since(time.Unix(u.Time().UnixTime()))
}

// EvidenceOf words what an agent knows of a call, in one line. Numbers that can't be are
// called so, and its own words are in quotes.
func EvidenceOf(id fleet.CallID, fate mux.Fate, resp *protocol.Response) string {
	said := Said{Fate: fate, Resp: resp, Asked: true}
	if bad := said.Contradiction(); bad != "" {
		return "the host contradicts itself (" + bad + "), so nothing is known from it"
	}
	parts := []string{begunOf(fate)}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if fate.AgoMS > 0 {
		if since := sentSince(id); fate.AgoMS > since.Milliseconds()+ClocksApart.Milliseconds() {
			add("the time that it gives for the beginning is before the call was made")
		} else {
			add("it began %s before the agent was asked", (time.Duration(fate.AgoMS) * time.Millisecond).Round(100*time.Millisecond))
		}
	}
	switch {
	case fate.PID < 0 || int64(fate.PID) > math.MaxUint32:
		add("the process number that it gives can't be one")
	case fate.PID > 0:
		add("as process %d", fate.PID)
	}
	switch {
	case resp != nil && resp.Error != nil:
		add("it ended with the error %s", CodeOf(resp.Error.Code))
	case resp != nil:
		add("it ended with a result")
	case fate.Ended:
		add("it has ended")
	}
	if fate.ExitCode != nil {
		if SaneExit(*fate.ExitCode) {
			add("exit code %d", *fate.ExitCode)
		} else {
			add("the exit code that it gives can't be one")
		}
	}
	if fate.Note != "" {
		add("and it notes: %s", text.Quote(fate.Note, maxNote))
	}
	return "the host says: " + strings.Join(parts, ", ")
}

func begunOf(fate mux.Fate) string {
	switch fate.State {
	case protocol.FateUnseen:
		return "its agent's journal has no trace of it"
	case protocol.FateRunning:
		return "it was still running when the agent was asked"
	default:
		return "it had begun"
	}
}

// SaneExit tells what a system gives as an exit code: 128+n for a signal, -1 for a process
// that had none, 32 bits on Windows.
func SaneExit(code int) bool { return code >= -1 && int64(code) <= math.MaxUint32 }

// CodeOf is an agent's code as it may be shown: a known one.
func CodeOf(c protocol.Code) protocol.Code {
	if !believed(c) {
		return protocol.CodeToolFailed
	}
	return c
}

// believed tells the codes that an agent may end a call with.
func believed(c protocol.Code) bool {
	switch c {
	case protocol.CodeBadArgs, protocol.CodeUnsupported, protocol.CodeDenied, protocol.CodeToolFailed, protocol.CodeTimedOut,
		protocol.CodeNotStarted, protocol.CodeOutcomeUnknown, protocol.CodeConflict, protocol.CodeTooLarge, protocol.CodeRateLimited,
		protocol.CodeExpired, protocol.CodeInternal, protocol.CodeCancelled:
		return true
	default:
		return false
	}
}
