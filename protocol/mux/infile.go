package mux

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/drover-fleet/drover/protocol"
)

// ErrReset ends the reading of a stream that its sender gave up: what came of it is void.
var ErrReset = errors.New("the sender gave the stream up before its end")

// errLeft ends the reading of a stream after its call.
var errLeft = errors.New("the call has ended, and its streams with it")

// inFile is a file's stream that comes in. The reader puts its chunks here and never waits;
// what isn't consumed yet is bounded by the window that was granted.
type inFile struct {
	s      *Session
	stream uint32
	wake   chan struct{} // one token: something has changed

	mu    sync.Mutex
	win   window
	mark  int64     // win.received when the running measurement began
	segs  []*[]byte // not consumed yet
	off   int       // of segs[0], consumed
	ended bool      // the end flag came: it's whole
	reset bool
	left  bool // the consumer has gone: the rest is dropped as it comes
}

func (s *Session) newInFile(o *protocol.Open) *inFile {
	return &inFile{s: s, stream: o.Stream, wake: make(chan struct{}, 1), win: newWindow(protocol.InitialCredit, o.Size)}
}

func (f *inFile) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// push takes one chunk from the reader; a text says how it breaks the protocol.
func (f *inFile) push(data []byte, end bool) string {
	credit, bad := f.take(data, end)
	if bad != "" {
		return bad
	}
	f.credit(credit)
	f.poke()
	return ""
}

func (f *inFile) take(data []byte, end bool) (credit int64, bad string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, n := &f.win, int64(len(data))
	switch {
	case n > w.left():
		return 0, "a chunk beyond its credit"
	case w.end >= 0 && (w.received+n > w.end || end && w.received+n != w.end):
		return 0, "a stream that isn't as long as it said"
	}
	w.received += n
	if f.left {
		w.taken = w.received
	} else {
		f.store(data)
	}
	f.ended = end // once all of it is there
	return f.due(), ""
}

// store copies data behind what waits: small chunks share a segment.
func (f *inFile) store(data []byte) {
	for len(data) > 0 {
		if n := len(f.segs); n == 0 || len(*f.segs[n-1]) == cap(*f.segs[n-1]) {
			seg := chunks.get()
			*seg = (*seg)[:0]
			f.segs = append(f.segs, seg)
		}
		tail := f.segs[len(f.segs)-1]
		n := min(len(data), cap(*tail)-len(*tail))
		*tail = append(*tail, data[:n]...)
		data = data[n:]
	}
}

func (f *inFile) due() int64 {
	if f.ended || f.reset {
		return 0
	}
	return f.win.due()
}

func (f *inFile) credit(n int64) { f.s.credit(f.stream, n) }

// void is a reset by the sender.
func (f *inFile) void() {
	defer f.poke()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reset = true
	f.drop()
}

// leave is the consumer's last word: what comes from now on is dropped and credited.
func (f *inFile) leave() {
	f.credit(f.leaving())
	f.poke()
}

func (f *inFile) leaving() (credit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = true
	f.drop()
	return f.due()
}

func (f *inFile) drop() {
	for _, seg := range f.segs {
		chunks.put(seg)
	}
	f.segs, f.off = nil, 0
	f.win.taken = f.win.received
}

// over tells that nothing more will come.
func (f *inFile) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended || f.reset
}

// read copies what is there, or waits for it. ctx ends the waiting; under is the call's, or
// the connection's, without which nothing more comes.
func (f *inFile) read(ctx, under context.Context, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.await(ctx, under); err != nil {
		return 0, err
	}
	n, credit := f.copyOut(p)
	f.credit(credit)
	return n, nil
}

func (f *inFile) copyOut(p []byte) (n int, credit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n < len(p) && len(f.segs) > 0 {
		seg := *f.segs[0]
		m := copy(p[n:], seg[f.off:])
		n, f.off = n+m, f.off+m
		if f.off == len(seg) {
			chunks.put(f.pop())
		}
	}
	f.win.taken += int64(n)
	return n, f.due()
}

// next takes a segment out; nil when a reset has dropped what was there a moment ago.
func (f *inFile) next() *[]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.segs) == 0 {
		return nil
	}
	return f.pop()
}

func (f *inFile) pop() *[]byte {
	seg := f.segs[0]
	f.segs[0], f.off = nil, 0
	f.segs = f.segs[1:]
	return seg
}

// copyTo gives everything to w, until the end.
func (f *inFile) copyTo(ctx, under context.Context, w io.Writer) error {
	for {
		err := f.await(ctx, under)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		seg := f.next()
		if seg == nil {
			continue
		}
		n, err := w.Write(*seg)
		if err == nil && n < len(*seg) {
			err = io.ErrShortWrite
		}
		size := int64(len(*seg))
		chunks.put(seg)
		if err != nil {
			return &sinkError{err}
		}
		f.mu.Lock()
		f.win.taken += size
		credit := f.due()
		f.mu.Unlock()
		f.credit(credit)
	}
}

// sinkError tells a failing Sink from a failing stream.
type sinkError struct{ error }

func (e *sinkError) Unwrap() error { return e.error }

// await waits for bytes; io.EOF is the end, and only that. Only the consumer calls it, and
// what it found stays.
func (f *inFile) await(ctx, under context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		f.mu.Lock()
		some, ended, reset, left := len(f.segs) > 0, f.ended, f.reset, f.left
		f.mu.Unlock()
		switch {
		case reset:
			return ErrReset
		case left:
			return errLeft
		case !ended && under.Err() != nil:
			return context.Cause(under)
		case some:
			return nil
		case ended:
			return io.EOF
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
		case <-under.Done():
		}
	}
}

// begin notes where the stream stands when a measurement begins.
func (f *inFile) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark = f.win.received
}

func (f *inFile) limit() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.win.limit
}

// held is what the stream may take of memory.
func (f *inFile) held() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(f.win.limit, f.win.granted-f.win.taken, protocol.InitialCredit)
}

// holding tells that the stream still needs its window.
func (f *inFile) holding() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.reset && !f.left && (!f.ended || f.win.taken < f.win.received)
}

// grow adds up to n to the window if that was the limit: much of it came within one round
// trip, and the consumer keeps up. It returns what was added.
func (f *inFile) grow(n int64) int64 {
	f.mu.Lock()
	w := &f.win
	n = min(n, maxFileWindow-w.limit)
	if n <= 0 || f.ended || (w.received-f.mark)*4 < w.limit || (w.received-w.taken)*2 > w.limit {
		f.mu.Unlock()
		return 0
	}
	w.limit += n
	credit := f.due()
	f.mu.Unlock()
	f.credit(credit)
	return n
}

// shrink leaves a part of the window.
func (f *inFile) shrink(part float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.win.limit = max(int64(float64(f.win.limit)*part), minFileWindow)
}
