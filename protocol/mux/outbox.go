package mux

import (
	"encoding/binary"
	"sync"

	"github.com/drover-fleet/drover/protocol"
)

const (
	// maxQueued bounds the frames of calls, responses and notices that wait to be written.
	maxQueued = 256
	// maxForced bounds what the session says by itself (pongs, credit, cancels, busy): a peer
	// that asks and asks and doesn't read is cut off.
	maxForced = 2048
)

// outFrame is one frame on its way out: a text message, or, when it's long, a stream.
type outFrame struct {
	data   []byte
	id     string // of the call it belongs to, for the stream's open
	slot   bool   // holds one of the outbox's slots
	budget int64  // holds this much of the outbox's budget
	// Under outbox.mu:
	begun  bool       // its write, or the write of its last chunk, has begun: it may arrive whole
	gone   bool       // withdrawn
	forced bool       // counts among outbox.forced
	st     *outStream // of a long one
	after  func()     // called by the writer once it's written whole
}

// outStream is what travels in chunks: a long frame, or a file. Under outbox.mu.
type outStream struct {
	open   protocol.Open // its stream is 0 until the open is written
	queued bool
	sent   bool // its last chunk, or its reset, went to the writer
	credit int64
	at     int // of a frame: sent up to here
	frame  *outFrame
	file   *outFile
}

func (st *outStream) gone() bool {
	if st.file != nil {
		return st.file.gone
	}
	return st.frame.gone
}

func (st *outStream) fill(b []byte, room int64) (_ []byte, end, ok bool) {
	if st.file != nil {
		return st.file.fill(b, room)
	}
	f := st.frame
	n := int(min(int64(len(f.data)-st.at), room))
	if n <= 0 {
		return b, false, false
	}
	b = append(b, f.data[st.at:st.at+n]...)
	st.at += n
	f.begun = st.at == len(f.data)
	return b, f.begun, true
}

// piece is one message for the pipe.
type piece struct {
	binary bool
	data   []byte
	frame  *outFrame  // of a text message
	stream *outStream // of an open or a chunk
	last   bool
}

// outbox holds what waits for the one writer. next has its order.
type outbox struct {
	wake  chan struct{} // one token: something may be ready
	slots chan struct{} // a token for each frame that waits
	bytes budget        // of long frames that are open or wait to be

	mu         sync.Mutex
	control    fifo // what the session says by itself
	frames     fifo // short frames of calls, and notices
	forced     int
	bulk       []*outStream
	turn       int
	open       map[uint32]*outStream
	lastStream uint32 // 0 before the first
	step       uint32 // parity: 1 for the calling side, 2 for the agent's
	credit     int64
}

// fifo is a queue of frames.
type fifo struct {
	list []*outFrame
	head int
}

func (q *fifo) push(f *outFrame) { q.list = append(q.list, f) }

// pop returns the next frame that wasn't withdrawn, or nil. The queue starts again once it's
// empty; one that grew long is let go.
func (q *fifo) pop() *outFrame {
	for q.head < len(q.list) {
		f := q.list[q.head]
		q.list[q.head] = nil
		q.head++
		if !f.gone {
			return f
		}
	}
	if q.head = 0; cap(q.list) > 64 {
		q.list = nil
	} else {
		q.list = q.list[:0]
	}
	return nil
}

func (o *outbox) init(step uint32) {
	o.wake = make(chan struct{}, 1)
	o.slots = make(chan struct{}, maxQueued)
	o.bytes.free = protocol.MaxOpen
	o.step = step
	o.credit = protocol.ConnCredit
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// push queues a frame that holds its slot and budget already.
func (o *outbox) push(f *outFrame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(f.data) <= protocol.MaxMessage {
		o.frames.push(f)
		o.poke()
		return
	}
	f.st = &outStream{frame: f, queued: true, open: protocol.Open{Type: protocol.TypeOpen, Kind: protocol.KindFrame, ID: f.id, Size: int64(len(f.data))}}
	o.queue(f.st)
}

func (o *outbox) queue(st *outStream) {
	st.credit = protocol.InitialCredit
	o.bulk = append(o.bulk, st)
	o.poke()
}

// force queues a short frame without a slot; false when too many wait.
func (o *outbox) force(data []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forced >= maxForced {
		return false
	}
	o.forced++
	o.control.push(&outFrame{data: data, forced: true})
	o.poke()
	return true
}

// withdraw takes a frame back: true when it certainly doesn't arrive whole. A stream that
// was opened is reset.
func (o *outbox) withdraw(f *outFrame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.begun {
		return false
	}
	if f.gone {
		return true
	}
	f.gone = true
	if f.st == nil || f.st.open.Stream == 0 {
		o.drop(f.st)
		o.release(f)
	}
	o.poke()
	return true
}

// begun tells, once the session has ended, whether f may have arrived; if not, it never will.
func (o *outbox) begun(f *outFrame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !f.begun {
		f.gone = true
	}
	return f.begun
}

// quiet tells that no stream waits to be sent.
func (o *outbox) quiet() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.bulk) == 0
}

// release gives back what the frame held. It's called once for each frame.
func (o *outbox) release(f *outFrame) {
	if f.slot {
		f.slot = false
		<-o.slots
	}
	if f.budget > 0 {
		o.bytes.release(f.budget)
		f.budget = 0
	}
}

func (o *outbox) drop(st *outStream) {
	if st == nil || !st.queued {
		return
	}
	for i, x := range o.bulk {
		if x == st {
			o.bulk = append(o.bulk[:i], o.bulk[i+1:]...)
			if i < o.turn {
				o.turn--
			}
			break
		}
	}
	delete(o.open, st.open.Stream)
}

// next finds the next message to write. This is the order, here and nowhere else: what the
// session says by itself (pings and pongs, credit, cancels); short frames of calls, in their
// order; then, by turns and chunk by chunk, long frames and files. So nothing waits for more
// than one chunk of what comes after it here. scratch is the writer's buffer for chunks.
func (o *outbox) next(p *piece, scratch []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.control.pop()
	if f == nil {
		f = o.frames.pop()
	}
	if f != nil {
		if f.forced {
			o.forced--
		}
		f.begun = true
		*p = piece{data: f.data, frame: f, last: true}
		return true
	}
	for range len(o.bulk) {
		if o.turn >= len(o.bulk) {
			o.turn = 0
		}
		st := o.bulk[o.turn]
		o.turn++
		if o.chunk(st, p, scratch) {
			return true
		}
	}
	return false
}

// chunk makes the next message of a stream, if its credit allows one.
func (o *outbox) chunk(st *outStream, p *piece, scratch []byte) bool {
	if st.open.Stream == 0 {
		o.assign(st)
		*p = piece{stream: st}
		return true
	}
	if st.gone() {
		st.sent = true
		*p = piece{binary: true, data: header(scratch[:0], st.open.Stream, protocol.FlagReset), stream: st, last: true}
		o.drop(st)
		return true
	}
	data, end, ok := st.fill(header(scratch[:0], st.open.Stream, 0), min(protocol.MaxChunk, st.credit, o.credit))
	if !ok {
		return false
	}
	n := int64(len(data) - protocol.ChunkHeader)
	st.credit -= n
	o.credit -= n
	if end {
		data[protocol.ChunkHeader-1] = protocol.FlagEnd
		st.sent = true
		o.drop(st)
	}
	*p = piece{binary: true, data: data, stream: st, last: end}
	return true
}

func (o *outbox) assign(st *outStream) {
	if o.lastStream == 0 {
		o.lastStream = o.step
	} else {
		o.lastStream += 2
	}
	st.open.Stream = o.lastStream
	if o.open == nil {
		o.open = map[uint32]*outStream{}
	}
	o.open[o.lastStream] = st
}

// written ends what went out with its last piece, and returns what is to be called then.
func (o *outbox) written(p *piece) func() {
	if p.stream != nil && p.stream.file != nil {
		close(p.stream.file.done)
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f := p.frame
	if f == nil {
		f = p.stream.frame
	}
	o.release(f)
	if f.gone {
		return nil
	}
	return f.after
}

// grant adds the peer's credit; a text says how it breaks the protocol.
func (o *outbox) grant(stream uint32, n int64) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := &o.credit
	if stream != 0 {
		st := o.open[stream]
		if st == nil {
			if stream > o.lastStream || stream%2 != o.step%2 {
				return "credit for a stream that was never opened"
			}
			return "" // it ended meanwhile
		}
		at = &st.credit
	}
	if n < 1 || n > protocol.MaxWindow || *at+n > protocol.MaxWindow {
		return "credit out of range"
	}
	*at += n
	o.poke()
	return ""
}

func header(b []byte, stream uint32, flags byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, stream), flags)
}
