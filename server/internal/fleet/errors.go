package fleet

import (
	"errors"
	"fmt"

	"github.com/drover-fleet/drover/protocol"
)

// Error is an error with a code. Message is safe to show and says what to do next; Err is
// for the log alone.
type Error struct {
	Code    protocol.Code
	Reason  string
	Message string
	Err     error
}

// Error implements error. It leaves Err out: a log line adds it by itself.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error without a private cause.
func Errorf(code protocol.Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ReasonAgentFault is the reason of CodeInternal where it was the agent that failed inside.
const ReasonAgentFault = "agent_fault"

// AgentFault tells that an agent failed inside, and not this server.
func (e *Error) AgentFault() bool {
	return e.Code == protocol.CodeInternal && e.Reason == ReasonAgentFault
}

// Limited makes the refusal of a limit, whose name is the reason.
func Limited(limit, format string, args ...any) *Error {
	return &Error{Code: protocol.CodeRateLimited, Reason: limit, Message: fmt.Sprintf(format, args...)}
}

// Passes tells whether the error is a limit that passes by itself, as what others or the caller
// have under way ends. The others need somebody: a host that comes back for what is queued for
// it, a client that ends one of its streams.
func (e *Error) Passes() bool {
	if e.Code != protocol.CodeRateLimited {
		return false
	}
	switch e.Reason {
	case "principal_body_bytes", "body_bytes", "principal_open_bytes", "open_bytes", "principal_calls",
		"principal_waiting", "agent_calls", "principal_waits", "waits", protocol.ReasonBusy:
		return true
	}
	return false
}

// Wrap makes an Error with a private cause.
func Wrap(code protocol.Code, err error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// AsError finds the Error in err; anything else becomes internal with a neutral message.
func AsError(err error) *Error {
	var fe *Error
	if errors.As(err, &fe) {
		return fe
	}
	var pe *protocol.Error
	if errors.As(err, &pe) {
		return &Error{Code: pe.Code, Reason: pe.Reason, Message: pe.Message}
	}
	return &Error{Code: protocol.CodeInternal, Message: "Drover failed inside; the server's log has the cause", Err: err}
}

// CheckRowCursor tells whether a cursor can be one of a list of calls, or of the record's rows: an
// id of a row, after which the list goes on. Any other would sort before or after everything.
func CheckRowCursor(cursor string) error {
	if _, ok := ParseCallID(cursor); !ok && cursor != "" {
		return BadCursor()
	}
	return nil
}

// BadCursor refuses a cursor that no list gave, or another one.
func BadCursor() *Error {
	return Errorf(protocol.CodeBadArgs, "cursor must be the next_cursor of an earlier answer to the same question; leave it out to begin anew")
}
