package mux

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
)

// Pipe carries whole messages, in order, between two ends. Read is called from one
// goroutine, Write from another, Close from any, also while the others run: it makes both
// return.
type Pipe interface {
	// Read returns the next message; msg is valid until the next Read. When the peer closed
	// in order, the error has a *protocol.CloseError in its chain; a message above the
	// pipe's limit is protocol.ErrTooBig.
	Read(ctx context.Context) (binary bool, msg []byte, err error)
	// Write sends one message. After an error nothing is known of how much arrived. msg is
	// not kept.
	Write(ctx context.Context, binary bool, msg []byte) error
	// Close ends the pipe. Code 0 ends it at once and says nothing to the peer; any other
	// code and reason (at most 120 bytes) are sent, and the peer's answer is waited for, for
	// seconds. Only the first Close counts.
	Close(code int, reason string) error
}

// Handler executes requests: the agent's side of a session.
type Handler interface {
	// Handle executes one request and returns its response. It's called in a goroutine of
	// its own for each request; there are never more at once than Config.MaxCalls.
	//
	// ctx is cancelled when the server cancels the call: context.Cause(ctx) is then a
	// *CancelError with the server's reason, and the response (code cancelled or timed_out)
	// is still wanted, once the work is really dead. It's also cancelled when the connection
	// ends, with protocol.ErrCut as cause: nobody waits for the response then. ctx has no
	// deadline: Handle keeps to req.DeadlineMS by its own clock, counted from the call.
	//
	// w is the call's way back over its connection.
	//
	// The response's Type and ID are filled in by the session; a nil response counts as an
	// internal error. One that is larger than protocol.MaxFrame, or isn't valid JSON, is
	// replaced by an error of its own (too_large, internal). After a panic in Handle it's
	// outcome_unknown, if Config.Panicked is there to hear of it.
	Handle(ctx context.Context, req *protocol.Request, w *Work) *protocol.Response
}

// Resumer answers for calls of earlier connections: the agent's side, from version 2.
type Resumer interface {
	// Fates tells what became of calls. It's called in a goroutine of its own. After a panic
	// nothing is told, and the server asks again.
	Fates(ids []string) protocol.Resume
	// Rejoin waits for the end of a call whose fate was running or done, and returns its
	// response. ctx is as in Handle: a cancel of the server's ends the call itself, the end
	// of the connection only this wait.
	Rejoin(ctx context.Context, id string, w *Work) *protocol.Response
}

// Exchange is what travels beside a call. The zero value is a plain call. Of a resumed call
// only Progress counts: its streams ended with the connection that they were on.
type Exchange struct {
	// Progress, if not nil, asks for progress; it's called in order from the calling
	// goroutine.
	Progress func(protocol.Progress)
	// Fated, if not nil, hears the fate of a resumed call once it's known, before its
	// response.
	Fated func(Fate)
	// Body, if not nil, is sent as a stream of kind file after the request; Size is its
	// length in bytes, -1 when that isn't known. A Body that fails, or has another length,
	// resets the stream, and the agent fails the call. It's read from one goroutine. When
	// the call ends before it, a Read may still run as Call returns; nothing is read after
	// that one.
	Body io.Reader
	Size int64
	// Sink, if not nil, takes the bytes of the stream of kind file that the agent opens under
	// the call. It's called from one goroutine, never from the reader; while it's slow the
	// agent is held back by credit. When it fails, the call is cancelled. Call never returns
	// while a Write runs.
	Sink io.Writer
	// Interrupt, if not nil, has a Write of the Sink that hangs return, and those after it. It's
	// called once, from another goroutine, when the call is given up, or its connection cut,
	// before the Sink has everything.
	Interrupt func()
}

// ErrDetached as the cause of a call's context ends the wait for it and nothing else: no
// cancel is sent, and the work goes on. The error is protocol.ErrCut, or ErrNotSent for a
// request that wasn't written.
var ErrDetached = errors.New("nobody waits for it here any more")

// Fate is an agent's answer to what became of a call.
type Fate struct {
	protocol.ResumeState
	// Boot is the agent's journal and boot as it answered.
	Boot string
}

// CancelError is the cause of a handler's context when the server cancelled the call.
type CancelError struct{ Reason string }

// Error implements error.
func (e *CancelError) Error() string {
	if e.Reason == "" {
		return "cancelled by the server"
	}
	return "cancelled by the server: " + e.Reason
}

// Doubled tells of a request that came once more over its connection, by a fault of the
// server or of something on the way. It was dropped: the first one alone runs and is
// answered.
type Doubled struct{ ID string }

// Config sets up a session. The zero value is a caller's side with the default keep-alive.
type Config struct {
	// Handler makes this the agent's side. nil: this side calls, and a request from the
	// peer is a violation.
	Handler Handler
	// MaxCalls bounds the handler's concurrent requests; 256 when zero. One above it is
	// answered with rate_limited, reason busy.
	MaxCalls int
	// KeepAlive is the interval at which the calling side pings; protocol.KeepAlive when
	// zero. Without any message for twice the interval either side ends the session.
	KeepAlive time.Duration
	// Version is what the handshake agreed on; protocol.Version when zero. Below 2 nothing
	// is resumed and no streams but those of frames exist.
	Version int
	// Resumer answers, on the agent's side, what became of earlier calls; nil answers unseen
	// for each.
	Resumer Resumer
	// Notify, if not nil, hears frames that aren't the session's own business:
	// *protocol.FactsUpdate, *protocol.Log, *protocol.Epoch and *protocol.Resume with states
	// on the calling side; *protocol.Config and *Doubled on the agent's; *protocol.Goodbye on
	// both. It's called from the reader and must not block.
	Notify func(frame any)
	// Ended, if not nil, is called once, at the moment the session ends and before its pipe
	// is closed, with the reason. It must not block.
	Ended func(err error)
	// Panicked, if not nil, hears of each panic in the session's own goroutines and in what is
	// called there: the pipe, Notify, Ended, Handler, Resumer, a Body or a Sink. Where it's a
	// call's, it ends that call alone, whose id is given; otherwise call is "", and the session
	// ends, as if its connection had been cut. It's called from any goroutine and must not
	// block. nil: panics aren't caught.
	Panicked func(call string, p *fault.Panic)
}
