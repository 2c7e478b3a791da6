package run

import (
	"context"
	"errors"
	"io"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// errNoStream: the call has no connection, in a test of a capability for instance.
var errNoStream = errors.New("this call has no streams")

// In waits for the file that the caller sends beside the call: see mux.Work. From then on
// the call's context ends with its connection, since the rest of the file can't come over
// another one.
func (c *Call) In(ctx context.Context) (r io.Reader, size int64, err error) {
	if c.flight == nil {
		return nil, 0, errNoStream
	}
	c.flight.stream()
	return c.flight.work.In(ctx)
}

// Out opens the file that the caller gets beside the call: see mux.Work. From then on the
// call's context ends with its connection.
func (c *Call) Out(size int64) (mux.Upstream, error) {
	if c.flight == nil {
		return nil, errNoStream
	}
	c.flight.sending.Store(true)
	c.flight.stream()
	return c.flight.work.Out(size)
}

// stream binds the call to its connection. wait does the same when it sees the cut later.
func (f *flight) stream() {
	f.streaming.Store(true)
	if cause := context.Cause(f.conn); IsCut(cause) {
		f.cancel(cause)
	}
}

// forLater is the response as another connection may get it. A file that went out over the
// first one didn't arrive, or nobody would ask.
func (f *flight) forLater(resp *protocol.Response) *protocol.Response {
	if !f.sending.Load() || resp.Error != nil {
		return resp
	}
	later := *resp
	later.Error = protocol.Errorf(protocol.CodeCancelled, "the connection was cut before the file had arrived whole; ask for it again")
	return &later
}
