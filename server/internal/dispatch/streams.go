package dispatch

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// reasonGone tells of a transfer that was cancelled because its client has gone.
const reasonGone = "client_gone"

// sink is a caller's Sink. It keeps the error by which that failed; of one that was interrupted
// why the call ended, if that's why.
type sink struct {
	to          io.Writer
	call        context.Context
	interrupted atomic.Bool
	err         error
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (n int, err error) {
	err = errSinkBroke
	defer func() { // also when it panics, which the session catches
		if err == nil || s.err != nil {
			return
		}
		if !s.interrupted.Load() {
			s.err = err
		} else if cause := context.Cause(s.call); cause != nil {
			s.err = &fleet.Error{Code: protocol.CodeCancelled, Err: err, Message: cause.Error() + "; the client had not got the whole file"}
		}
	}()
	n, err = s.to.Write(p)
	return n, err
}

var errSinkBroke = errors.New("the receiver of the file failed inside")

// stream takes in what travels beside the call.
func (f *flight) stream(req *Request) {
	f.check, f.file = req.Check, sendsFile(f.target.def, f.target.args)
	if req.Sink != nil {
		f.sink = &sink{to: req.Sink, call: f.ctx}
		f.exchange.Sink = f.sink
		if req.Interrupt != nil {
			f.exchange.Interrupt = func() { f.sink.interrupted.Store(true); req.Interrupt() }
		}
	}
}

// sendsFile tells whether a call has its agent send a file, and not only describe it.
func sendsFile(def *capability.Definition, args []byte) bool {
	var in struct {
		Head bool `json:"head"`
	}
	return def.Stream == capability.FromHost && (json.Unmarshal(args, &in) != nil || !in.Head)
}

// judge decides whether the end of a call with a stream is what its agent says: the record
// says the same as the caller's answer.
func (f *flight) judge(out *fleet.Outcome) {
	if !f.sent || f.target.def.Stream == capability.NoStream || out.State != fleet.Succeeded && out.State != fleet.Failed && out.State != fleet.Cancelled {
		return
	}
	said := errorOf(out.Code, out.Reason, out.Message)
	is := said
	switch {
	case f.sink != nil && f.sink.err != nil: // whatever the agent was told then, it isn't why
		is = fleet.AsError(f.sink.err)
	case said == nil && f.file && f.cut: // the rest of it went nowhere
		is = &fleet.Error{Code: protocol.CodeToolFailed, Reason: capability.ReasonCut, Message: "the connection to the agent broke before the whole file had come; try again"}
	case f.check != nil:
		is = f.check(out.Result, said)
	}
	if is != said {
		out.State, out.Code, out.Reason, out.Message, out.Result = fleet.Succeeded, "", "", "", nil
		if is != nil {
			out.State, out.Code, out.Reason, out.Message = fleet.StateOf(is.Code), is.Code, is.Reason, is.Message
		}
	}
	if out.State != fleet.Cancelled {
		return
	}
	switch cause := context.Cause(f.ctx); {
	case errors.Is(cause, errGone):
		out.Reason = reasonGone
	case errors.Is(cause, errWayGone):
		out.Reason = capability.ReasonCut
	}
}
