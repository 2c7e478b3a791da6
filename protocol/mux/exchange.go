package mux

import (
	"context"
	"errors"
	"io"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
)

// transfer is a Call with a file beside it.
func (s *Session) transfer(ctx context.Context, req *protocol.Request, x Exchange) (*protocol.Response, error) {
	if s.cfg.Version < 2 {
		return nil, notSent(protocol.Errorf(protocol.CodeUnsupported, "the agent speaks protocol version %d, which has no streams for files; update the agent", s.cfg.Version))
	}
	if x.Body != nil && x.Size < -1 {
		return nil, notSent(protocol.Errorf(protocol.CodeInternal, "a body of %d bytes", x.Size))
	}
	if err := s.files.acquire(ctx, s.ctx, 1); err != nil {
		return nil, notSent(err)
	}
	defer s.files.release(1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errLeft)
	f, w, err := s.prepare(ctx, req, x.Progress != nil)
	if err != nil {
		return nil, err
	}
	defer s.calls.remove(req.ID)
	if x.Body != nil {
		body, written := s.newOutFile(ctx, req.ID, x.Size), make(chan struct{})
		f.after = func() { close(written) }
		go s.sendBody(x.Body, body, written)
		defer body.Reset()
	}
	uninterrupted := func() bool { return true }
	if x.Interrupt != nil {
		uninterrupted = context.AfterFunc(ctx, func() {
			defer fault.Catch(s.caughtIn(req.ID, func(*fault.Panic) {})) // a Write that hangs goes on hanging
			x.Interrupt()
		})
	}
	over, sunk := make(chan struct{}), make(chan error, 1)
	if x.Sink != nil {
		arrived, ended := s.calls.sink(w), make(chan struct{})
		go func() {
			defer close(ended)
			err := s.sunk(ctx, arrived, over, &receiver{s, req.ID, x.Sink})
			var se *sinkError
			if errors.As(err, &se) {
				cancel(errors.New("the receiver of the file failed: " + text.Line(se.Error(), 200)))
			}
			sunk <- err
		}()
		defer func() { cancel(errLeft); <-ended }() // no Write runs on, also after a panic of Progress
	} else {
		sunk <- nil
	}
	s.out.push(f)
	resp, err := s.await(ctx, req.ID, f, w, x)
	if resp == nil {
		cancel(err)
	}
	close(over) // no stream begins any more
	failed := <-sunk
	uninterrupted()
	return settle(resp, err, failed)
}

// receiver is a call's Sink. Its panic is an error of its own.
type receiver struct {
	s  *Session
	id string
	to io.Writer
}

// Write implements io.Writer.
func (r *receiver) Write(p []byte) (n int, err error) {
	defer fault.Catch(r.s.caughtIn(r.id, func(p *fault.Panic) { n, err = 0, p }))
	return r.to.Write(p)
}

// settle makes sure that no call counts as well ended whose file didn't arrive whole.
func settle(resp *protocol.Response, err, sunk error) (*protocol.Response, error) {
	if resp == nil || resp.Error != nil || sunk == nil {
		return resp, err
	}
	out := *resp
	if errors.Is(sunk, ErrReset) {
		out.Error = &protocol.Error{Code: protocol.CodeToolFailed, Reason: "io", Message: "the agent gave the file up before its end; what arrived of it is worth nothing"}
	} else {
		out.Error = protocol.Errorf(protocol.CodeCancelled, "the file didn't reach its receiver whole: %s", text.Line(sunk.Error(), protocol.MaxLine))
	}
	return &out, err
}

// sunk is drain, whose panic is its error.
func (s *Session) sunk(ctx context.Context, arrived <-chan *inFile, over <-chan struct{}, w *receiver) (err error) {
	defer fault.Catch(s.caughtIn(w.id, func(p *fault.Panic) { err = &sinkError{p} }))
	return s.drain(ctx, arrived, over, w)
}

// drain gives the stream that the agent opens to w; nil also when there was none.
func (s *Session) drain(ctx context.Context, arrived <-chan *inFile, over <-chan struct{}, w io.Writer) error {
	var f *inFile
	select {
	case f = <-arrived:
	case <-ctx.Done():
	case <-over:
	}
	if f == nil {
		select { // it came before the call was over
		case f = <-arrived:
		default:
			return nil
		}
	}
	defer f.leave()
	return f.copyTo(ctx, s.ctx, w)
}

// sendBody sends what is read from body, once the request was written. When the call has
// ended first, a Read that runs is its last.
func (s *Session) sendBody(body io.Reader, f *outFile, written <-chan struct{}) {
	select {
	case <-written:
	case <-f.ctx.Done():
		return
	case <-s.ctx.Done():
		return
	}
	// A Body that panics has failed, and its stream with it.
	defer fault.Catch(s.caughtIn(f.st.open.ID, func(*fault.Panic) { f.Reset() }))
	f.begin()
	buf := make([]byte, 2*protocol.MaxChunk)
	for {
		n, err := body.Read(buf)
		if _, werr := f.Write(buf[:n]); werr != nil {
			f.Reset()
			return
		}
		if err == io.EOF {
			_ = f.Close() // one that is too short was reset, and the agent fails the call
			return
		}
		if err != nil {
			f.Reset()
			return
		}
	}
}

// sink makes ready for the stream that the agent may open under a call.
func (c *calls) sink(w *call) <-chan *inFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.arrived = make(chan *inFile, 1)
	return w.arrived
}

// attach gives a stream to the call that it belongs to; a text says how it breaks the
// protocol. Nobody takes one of a call that was given up, or that has no Sink.
func (c *calls) attach(id string, f *inFile) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.open[id]
	switch {
	case w == nil && c.left.has(id):
		c.left.forget(id)
		f.leave()
	case w == nil || w.resumed || w.response != nil:
		return "a file's stream of a call that isn't open"
	case w.file != nil:
		return "a second file's stream of one call"
	case w.arrived == nil:
		w.file = f
		f.leave()
	default:
		w.file = f
		w.arrived <- f
	}
	return ""
}
