package mux

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// Work is a call's way back over its connection, for the handler that executes it: news of
// it, and the two streams of a file. Its methods may be called from any goroutine until
// Handle returns.
type Work struct {
	reporter
	ctx     context.Context // of the call; it ends with the connection, too
	cancel  context.CancelCauseFunc
	resumed bool // it came over an earlier connection
	apart   *detached

	streams sync.Mutex
	in      *inFile
	arrived chan struct{} // closed once in is there; made by who waits for it
	out     *outFile
	over    bool     // Handle has returned
	told    []func() // once the response was written
}

// detached are the ends of a Work without a connection.
type detached struct {
	tell func(string) // in place of a connection
	body io.Reader
	size int64
	up   io.Writer
}

// Detached is a Work without a connection: progress goes to the function, and there are no
// streams.
func Detached(progress func(string)) *Work { return DetachedStreams(progress, nil, -1, nil) }

// DetachedStreams is a Work without a connection for tests of capabilities: In returns in
// and size (-1: not known), and an error when in is nil; Out writes to out, and is an error
// when that is nil. An out that is an Upstream itself is what Out returns; over another one
// the announced size is checked as on a connection.
func DetachedStreams(progress func(string), in io.Reader, size int64, out io.Writer) *Work {
	return &Work{apart: &detached{tell: progress, body: in, size: size, up: out}}
}

func (s *Session) newWork(id string, progress bool) *Work {
	w := &Work{reporter: reporter{s: s, id: id, wanted: progress}}
	w.ctx, w.cancel = context.WithCancelCause(s.ctx)
	return w
}

// Progress sends one line, cut to 512 bytes, to a caller that asked for it; otherwise and
// when the connection is congested it does nothing. It never blocks.
func (w *Work) Progress(message string) {
	switch {
	case w.apart == nil:
		w.report(message)
	case w.apart.tell != nil:
		w.apart.tell(message)
	}
}

var (
	errNoIn  = errors.New("this call has no stream from the server")
	errNoOut = errors.New("this call can open no stream to the server")
	errTwice = errors.New("this call has opened its stream to the server already")
)

// streaming tells whether the call can have streams: not one of an earlier connection, whose
// streams ended with that, and none in version 1.
func (w *Work) streaming() bool { return w.apart == nil && !w.resumed && w.s.cfg.Version >= 2 }

// In waits for the server's file of this call, and returns what is read of it and its size
// in bytes, -1 when that isn't known. Read returns io.EOF only after the sender's end flag;
// it fails when the stream was reset (ErrReset), when the connection or the call has ended
// before that, and when ctx ends, which ends the waiting, too. There is one stream: later
// calls return the same. A server that has no file for the call opens no stream.
func (w *Work) In(ctx context.Context) (r io.Reader, size int64, err error) {
	if w.apart != nil && w.apart.body != nil {
		return w.apart.body, w.apart.size, nil
	}
	if !w.streaming() {
		return nil, 0, errNoIn
	}
	w.streams.Lock()
	if w.arrived == nil {
		w.arrived = make(chan struct{})
		if w.in != nil {
			close(w.arrived)
		}
	}
	arrived := w.arrived
	w.streams.Unlock()
	select {
	case <-arrived:
		return &fileReader{f: w.in, ctx: ctx, call: w.ctx}, w.in.win.end, nil
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	case <-w.ctx.Done():
		return nil, 0, context.Cause(w.ctx)
	}
}

// fileReader is an inFile for a capability.
type fileReader struct {
	f         *inFile
	ctx, call context.Context
}

// Read implements io.Reader.
func (r *fileReader) Read(p []byte) (int, error) { return r.f.read(r.ctx, r.call, p) }

// Out opens the call's file stream to the server, once; size is its length in bytes, -1 when
// that isn't known. It must be closed before Handle returns: one that isn't is reset, and
// the call fails. The response is sent after all of it.
func (w *Work) Out(size int64) (Upstream, error) {
	if w.apart != nil && w.apart.up != nil {
		if u, ok := w.apart.up.(Upstream); ok {
			return u, nil
		}
		return &detachedOut{w: w.apart.up, left: size}, nil
	}
	if !w.streaming() {
		return nil, errNoOut
	}
	if size < -1 {
		return nil, errLength
	}
	w.streams.Lock()
	defer w.streams.Unlock()
	switch {
	case w.over:
		return nil, errLeft
	case w.ctx.Err() != nil:
		return nil, context.Cause(w.ctx)
	case w.out != nil:
		return nil, errTwice
	}
	w.out = w.s.newOutFile(w.ctx, w.id, size)
	w.out.begin()
	return w.out, nil
}

// detachedOut is an Upstream over any writer.
type detachedOut struct {
	w    io.Writer
	mu   sync.Mutex
	left int64
	over bool
}

// Write implements Upstream.
func (d *detachedOut) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return 0, errFinished
	}
	if d.left >= 0 {
		if int64(len(p)) > d.left {
			d.over = true
			return 0, errLength
		}
		d.left -= int64(len(p))
	}
	return d.w.Write(p)
}

// Close implements Upstream.
func (d *detachedOut) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return errFinished
	}
	d.over = true
	if d.left > 0 {
		return errLength
	}
	return nil
}

// Reset implements Upstream.
func (d *detachedOut) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
}

// attach gives the call its stream. The reader calls it, once.
func (w *Work) attach(f *inFile) {
	w.streams.Lock()
	defer w.streams.Unlock()
	w.in = f
	if w.over {
		f.leave()
	} else if w.arrived != nil {
		close(w.arrived)
	}
}

// settle ends what the handler left open, and waits until what it closed was written. A file
// that didn't go out whole fails its call.
func (w *Work) settle(resp *protocol.Response) *protocol.Response {
	w.stop()
	w.streams.Lock()
	w.over = true
	in, out := w.in, w.out
	w.streams.Unlock()
	if in != nil {
		in.leave()
	}
	if out == nil {
		return resp
	}
	closed := out.closed()
	if !closed {
		out.Reset()
	}
	select {
	case <-out.done:
	case <-w.ctx.Done():
		out.Reset()
		select {
		case <-out.done:
		case <-w.s.ctx.Done():
		}
	}
	if resp == nil || resp.Error != nil || out.whole() {
		return resp
	}
	failed := *resp
	if w.ctx.Err() != nil {
		failed.Error = protocol.Errorf(protocol.CodeCancelled, "the file was not sent whole: %s", text.Line(context.Cause(w.ctx).Error(), protocol.MaxLine))
	} else {
		failed.Error = protocol.Errorf(protocol.CodeInternal, "the tool did not finish its file")
	}
	return &failed
}

// Answered has f called once the call's response was written to the connection whole, or never
// will be, as the connection has ended. It's called in the goroutine that Handle was, and counts
// when it comes before Handle, or Rejoin, returns. A Work without a connection calls nothing.
func (w *Work) Answered(f func()) {
	w.streams.Lock()
	defer w.streams.Unlock()
	w.told = append(w.told, f)
}

// awaited are those who wait for the response to be written.
func (w *Work) awaited() []func() {
	w.streams.Lock()
	defer w.streams.Unlock()
	return w.told
}

// answered tells those who wait for the response to be written.
func (w *Work) answered() {
	for _, f := range w.awaited() {
		f()
	}
}

// end releases the call's context.
func (w *Work) end() { w.cancel(nil) }

// reporter sends one call's progress.
type reporter struct {
	s      *Session
	id     string
	wanted bool
	mu     sync.Mutex
	seq    int64
	ended  bool
}

// report never blocks: when the queue is full, the line is dropped.
func (p *reporter) report(message string) {
	if !p.wanted {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.s.ctx.Err() != nil {
		return
	}
	select {
	case p.s.out.slots <- struct{}{}:
	default:
		return
	}
	p.seq++
	b, err := protocol.Encode(&protocol.Progress{Type: protocol.TypeProgress, ID: p.id, Seq: p.seq, Message: text.Line(message, protocol.MaxLine)})
	f := &outFrame{data: b, slot: true}
	if err != nil {
		p.s.out.release(f)
		return
	}
	p.s.out.push(f)
}

func (p *reporter) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}
