package mux

import (
	"context"
	"errors"
	"io"

	"github.com/drover-fleet/drover/protocol"
)

// Upstream is a file's stream to the server. Write may keep up to 128 KiB that aren't sent
// yet; it blocks while there's no more room, until the peer gives credit, and fails when the
// connection or the call has ended. Close marks the end: only then is the file whole; one
// that has another length than was announced is reset, and Close says so. Reset gives the
// stream up, and ends a Write that blocks. After either nothing more can be written.
type Upstream interface {
	io.Writer
	Close() error
	Reset()
}

// fileBuffer is how much a stream takes from its source ahead of what is sent.
const fileBuffer = 8 * protocol.MaxChunk

var (
	errLength   = errors.New("the file has another length than was announced; its stream was reset")
	errFinished = errors.New("the stream was closed or reset before")
)

// outFile is a file's stream on its way out.
type outFile struct {
	s    *Session
	ctx  context.Context // of its call
	room chan struct{}   // one token: something was sent, or it's over
	done chan struct{}   // closed once its last chunk, or its reset, was written, or it never will be

	// Under outbox.mu:
	st    *outStream
	left  int64  // of the announced size; -1 when that isn't known
	ring  []byte // made when it's first needed
	head  int
	n     int
	ended bool
	gone  bool // reset
}

func (s *Session) newOutFile(ctx context.Context, id string, size int64) *outFile {
	f := &outFile{s: s, ctx: ctx, room: make(chan struct{}, 1), done: make(chan struct{}), left: size}
	f.st = &outStream{file: f, open: protocol.Open{Type: protocol.TypeOpen, Kind: protocol.KindFile, ID: id, Size: size}}
	return f
}

// begin queues the stream. The request that it belongs to must have been written.
func (f *outFile) begin() {
	o := &f.s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.gone {
		return
	}
	f.st.queued = true
	o.queue(f.st)
}

// Write implements Upstream.
func (f *outFile) Write(p []byte) (int, error) {
	written := 0
	for {
		n, err := f.put(p[written:])
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
		select {
		case <-f.room:
		case <-f.ctx.Done():
			return written, context.Cause(f.ctx)
		case <-f.s.ctx.Done():
			return written, context.Cause(f.s.ctx)
		}
	}
}

func (f *outFile) put(p []byte) (int, error) {
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	o := &f.s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case f.gone || f.ended:
		return 0, errFinished
	case f.left >= 0 && int64(len(p)) > f.left:
		f.giveUp()
		return 0, errLength
	case len(p) == 0 || f.n == fileBuffer:
		return 0, nil
	case f.ring == nil:
		f.ring = make([]byte, fileBuffer)
	}
	n := 0
	for n < len(p) && f.n < fileBuffer { // twice when it goes around
		tail := (f.head + f.n) % fileBuffer
		m := copy(f.ring[tail:min(fileBuffer, tail+fileBuffer-f.n)], p[n:])
		n, f.n = n+m, f.n+m
	}
	if f.left >= 0 {
		f.left -= int64(n)
	}
	o.poke()
	return n, nil
}

// Close implements Upstream.
func (f *outFile) Close() error {
	o := &f.s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case f.gone || f.ended:
		return errFinished
	case f.left > 0:
		f.giveUp()
		return errLength
	case f.ctx.Err() != nil:
		f.giveUp()
		return context.Cause(f.ctx)
	}
	f.ended = true
	o.poke()
	return nil
}

// Reset implements Upstream. It does nothing once all was sent.
func (f *outFile) Reset() {
	o := &f.s.out
	o.mu.Lock()
	defer o.mu.Unlock()
	f.giveUp()
}

func (f *outFile) giveUp() {
	if f.gone || f.st.sent {
		return
	}
	f.gone = true
	f.ring, f.n = nil, 0
	if !f.st.queued { // the peer never hears of it; one that waits is opened and reset
		close(f.done)
	}
	f.tell()
	f.s.out.poke()
}

// closed tells whether Close has ended it.
func (f *outFile) closed() bool {
	f.s.out.mu.Lock()
	defer f.s.out.mu.Unlock()
	return f.ended
}

// whole tells whether all was sent, end flag included.
func (f *outFile) whole() bool {
	f.s.out.mu.Lock()
	defer f.s.out.mu.Unlock()
	return f.st.sent && !f.gone
}

func (f *outFile) tell() {
	select {
	case f.room <- struct{}{}:
	default:
	}
}

// fill appends at most room bytes to b; ok is false when there's nothing to send.
func (f *outFile) fill(b []byte, room int64) (_ []byte, end, ok bool) {
	n := int(min(int64(f.n), room))
	if n <= 0 && (!f.ended || f.n > 0) {
		return b, false, false
	}
	for left := n; left > 0; {
		m := min(left, fileBuffer-f.head)
		b = append(b, f.ring[f.head:f.head+m]...)
		f.head = (f.head + m) % fileBuffer
		left -= m
	}
	f.n -= n
	if n > 0 {
		f.tell()
	}
	if end = f.ended && f.n == 0; end {
		f.ring = nil
	}
	return b, end, true
}
