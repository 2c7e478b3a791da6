package protocol

import (
	"errors"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/protocol/text"
)

// Errors of a call over a tunnel; wherever the tunnel is held they mean the same.
var (
	// ErrNotSent: the request was not written whole; it did not start.
	ErrNotSent = errors.New("the request was not sent")
	// ErrCut: the connection ended after the request was written and before its response.
	ErrCut = errors.New("the connection ended before the answer")
	// ErrNoAnswer: the call was cancelled and the agent didn't answer within CancelGrace.
	ErrNoAnswer = errors.New("the agent did not answer the cancel")
)

// ErrTooBig is what a pipe's Read returns for a message above its limit.
var ErrTooBig = errors.New("a message above the size limit")

// CancelGrace is how long a cancelled or timed-out call is waited for, until its process
// tree is reported dead.
const CancelGrace = 15 * time.Second

// KeepAlive is the interval of the calling side's pings when nothing else is said. Either
// side ends a connection on which nothing came for twice the interval.
const KeepAlive = 20 * time.Second

// HandshakeTimeout bounds the handshake, from the accepted connection to the welcome.
const HandshakeTimeout = 10 * time.Second

// Close codes of the tunnel's WebSocket, beside 1000 (done), 1001 (going away) and 1009 (a
// message above the limit).
const (
	CloseNormal    = 1000
	CloseGoingAway = 1001
	CloseViolation = 4400 // the peer broke the protocol; the reason says how
	CloseRefused   = 4401 // the handshake failed; a refuse frame came before
	CloseReplaced  = 4409 // a newer connection of the same agent took over
	CloseRemoved   = 4410 // the agent was removed, or its key replaced
	CloseSlow      = 4429 // the peer doesn't read what it's sent
)

// CloseError is how the peer ended the connection.
type CloseError struct {
	Code   int
	Reason string // the peer's text, unverified
}

// Error implements error.
func (e *CloseError) Error() string {
	return fmt.Sprintf("the peer closed the connection: %d %s", e.Code, text.Line(e.Reason, 120))
}
