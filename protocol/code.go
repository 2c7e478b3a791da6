// Package protocol is the contract between a Drover server and its agents:
// frames, handshake, error codes and their limits. docs/protocol.md describes it
// for authors of agents in other languages.
package protocol

import (
	"fmt"
	"slices"
)

// Code is a machine-readable error code. The same words appear on the tunnel, in MCP
// results, in REST errors, in the CLI and in the record.
type Code string

// The codes. Their meaning is fixed; a new one needs a protocol version.
const (
	// CodeUnauthenticated: the credential is missing, unknown, expired or revoked.
	CodeUnauthenticated Code = "unauthenticated"
	// CodeNoAgent: a forwarded call names no agent (absent, null, blank or not a string).
	CodeNoAgent Code = "no_agent"
	// CodeUnknownAgent: the id is malformed, unknown, removed or out of the caller's scope;
	// these can't be told apart.
	CodeUnknownAgent Code = "unknown_agent"
	// CodeUnknownTool: the tool does not exist or is not granted; these can't be told apart.
	CodeUnknownTool Code = "unknown_tool"
	// CodeBadArgs: the arguments don't fit the tool's schema, or a body isn't strict JSON.
	CodeBadArgs Code = "bad_args"
	// CodeUnsupported: the agent's build or its system can't do this.
	CodeUnsupported Code = "unsupported"
	// CodeOffline: the agent has no live tunnel; nothing was sent.
	CodeOffline Code = "offline"
	// CodeDenied: a policy, a person or the host refused.
	CodeDenied Code = "denied"
	// CodeApprovalPending: a person has to consent first.
	CodeApprovalPending Code = "approval_pending"
	// CodeExpired: the time within which it could have started has passed.
	CodeExpired Code = "expired"
	// CodeConflict: the request contradicts what exists (same key, other arguments).
	CodeConflict Code = "conflict"
	// CodeToolFailed: the capability ran and failed; Reason says how.
	CodeToolFailed Code = "tool_failed"
	// CodeTimedOut: the deadline passed and the work was ended.
	CodeTimedOut Code = "timed_out"
	// CodeCancelled: a caller or a revocation ended it, and it is dead.
	CodeCancelled Code = "cancelled"
	// CodeNotStarted: it certainly never began.
	CodeNotStarted Code = "not_started"
	// CodeOutcomeUnknown: it may or may not have run; nobody can say.
	CodeOutcomeUnknown Code = "outcome_unknown"
	// CodeTooLarge: a request or an answer exceeds its limit.
	CodeTooLarge Code = "too_large"
	// CodeRateLimited: a named limit is reached; retry later.
	CodeRateLimited Code = "rate_limited"
	// CodeNotFound: one of Drover's own objects (a call, a PAT, a token) isn't there.
	CodeNotFound Code = "not_found"
	// CodeUnavailable: the record can't be written, so nothing starts.
	CodeUnavailable Code = "unavailable"
	// CodeInternal: a defect of Drover's own; in an agent's answer, of that agent.
	CodeInternal Code = "internal"
)

// Codes lists every code in the order of docs/protocol.md.
func Codes() []Code {
	return []Code{
		CodeUnauthenticated, CodeNoAgent, CodeUnknownAgent, CodeUnknownTool, CodeBadArgs, CodeUnsupported,
		CodeOffline, CodeDenied, CodeApprovalPending, CodeExpired, CodeConflict, CodeToolFailed, CodeTimedOut,
		CodeCancelled, CodeNotStarted, CodeOutcomeUnknown, CodeTooLarge, CodeRateLimited, CodeNotFound,
		CodeUnavailable, CodeInternal,
	}
}

// Reasons that CodeToolFailed and a few others carry. A reason is a stable word; an agent
// may send others, which a server shows as they are after checking their form.
const (
	ReasonENOENT       = "enoent"       // no such file, directory or program
	ReasonEACCES       = "eacces"       // the agent's user may not
	ReasonEISDIR       = "eisdir"       // a directory where a file was asked for
	ReasonENOTDIR      = "enotdir"      // a file where a directory was asked for
	ReasonEEXIST       = "eexist"       // it exists already
	ReasonEROFS        = "erofs"        // read-only file system
	ReasonENOSPC       = "enospc"       // no space or quota left
	ReasonEINVAL       = "einval"       // the system refused the value
	ReasonENAMETOOLONG = "enametoolong" // a name or path too long for the system
	ReasonNotRegular   = "not_regular"  // a device, pipe or socket
	ReasonOutsideRoot  = "outside_root" // outside the folders that the host opened to file tools
	ReasonSHAMismatch  = "sha_mismatch" // the file is no longer what the caller saw
	ReasonSignal       = "signal"       // a signal ended the process
	ReasonIO           = "io"           // any other error of the system
	ReasonSeal         = "seal"         // the request was sealed for another agent
	ReasonDuplicate    = "duplicate"    // this call id was seen already
	ReasonBusy         = "busy"         // too many calls on this agent
	ReasonAgentStops   = "agent_stops"  // the agent was stopped, and ended what ran
)

// Error is an error as it travels: Message is safe to show and says what to do next.
type Error struct {
	Code    Code   `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("%s (%s): %s", e.Code, e.Reason, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Errorf makes an Error without a reason.
func Errorf(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Failf makes a CodeToolFailed error with a reason.
func Failf(reason, format string, args ...any) *Error {
	return &Error{Code: CodeToolFailed, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// WellFormed tells whether an error that came from a peer has a known code, a reason of
// the usual form ([a-z0-9_], at most 64 bytes) and a message of at most 64 KiB.
func (e *Error) WellFormed() bool {
	if len(e.Reason) > 64 || len(e.Message) > 64<<10 || !slices.Contains(Codes(), e.Code) {
		return false
	}
	for i := range len(e.Reason) {
		if c := e.Reason[i]; c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
