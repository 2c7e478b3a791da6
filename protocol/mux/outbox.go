package mux

import (
	"encoding/binary"
	"sync"

	"github.com/drover-fleet/drover/protocol"
)

const (
	// maxQueued bounds the frames of calls, responses and notices that wait to be written.
	maxQueued = 256
	// maxForced bounds what the reader answers by itself (pongs, credit, busy): a peer that
	// asks and asks and doesn't read is cut off.
	maxForced = 2048
)

// outFrame is one frame on its way out: a text message, or, when it's long, a stream.
type outFrame struct {
	data   []byte
	id     string // of the call it belongs to, for the stream's open
	slot   bool   // holds one of the outbox's slots
	budget int64  // holds this much of the outbox's budget
	// Under outbox.mu:
	begun  bool // its write, or the write of its last chunk, has begun: it may arrive whole
	gone   bool // withdrawn
	stream uint32
	opened bool
	sent   int
	credit int64
	forced bool   // counts among outbox.forced
	after  func() // called by the writer once it's written
}

// piece is one message for the pipe.
type piece struct {
	binary bool
	data   []byte
	frame  *outFrame
	last   bool
}

// outbox holds what waits for the one writer: control in order and first, then the streams
// by turns.
type outbox struct {
	wake  chan struct{} // one token: something may be ready
	slots chan struct{} // a token for each frame that waits
	bytes budget        // of streams that are open or wait to be

	mu         sync.Mutex
	control    []*outFrame
	head       int
	forced     int
	bulk       []*outFrame
	turn       int
	open       map[uint32]*outFrame
	lastStream uint32 // 0 before the first
	step       uint32 // parity: 1 for the calling side, 2 for the agent's
	credit     int64
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
	if len(f.data) > protocol.MaxMessage {
		f.credit = protocol.InitialCredit
		o.bulk = append(o.bulk, f)
	} else {
		o.control = append(o.control, f)
	}
	o.mu.Unlock()
	o.poke()
}

// force queues a short frame without a slot; false when too many wait.
func (o *outbox) force(data []byte) bool {
	o.mu.Lock()
	ok := o.forced < maxForced
	if ok {
		o.forced++
		o.control = append(o.control, &outFrame{data: data, forced: true})
	}
	o.mu.Unlock()
	o.poke()
	return ok
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
	if !f.opened {
		o.drop(f)
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

func (o *outbox) drop(f *outFrame) {
	for i, g := range o.bulk {
		if g == f {
			o.bulk = append(o.bulk[:i], o.bulk[i+1:]...)
			break
		}
	}
	delete(o.open, f.stream)
	if o.turn >= len(o.bulk) {
		o.turn = 0
	}
}

// next finds the next message to write. scratch is the writer's buffer for chunks.
func (o *outbox) next(p *piece, scratch []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.head < len(o.control) {
		f := o.control[o.head]
		o.control[o.head] = nil
		o.head++
		if f.gone {
			continue
		}
		if f.forced {
			o.forced--
		}
		f.begun = true
		*p = piece{data: f.data, frame: f, last: true}
		return true
	}
	o.trim()
	for i := range len(o.bulk) {
		at := (o.turn + i) % len(o.bulk)
		if o.chunk(o.bulk[at], p, scratch) {
			if o.turn = at + 1; o.turn >= len(o.bulk) {
				o.turn = 0
			}
			return true
		}
	}
	return false
}

// trim starts the control queue again once it's empty; a queue that grew long is let go.
func (o *outbox) trim() {
	if o.head = 0; cap(o.control) > 64 {
		o.control = nil
	} else {
		o.control = o.control[:0]
	}
}

// chunk makes the next message of a stream, if its credit allows one.
func (o *outbox) chunk(f *outFrame, p *piece, scratch []byte) bool {
	if f.gone {
		*p = piece{binary: true, data: header(scratch[:0], f.stream, protocol.FlagReset), frame: f, last: true}
		o.drop(f)
		return true
	}
	if !f.opened {
		o.assign(f)
		*p = piece{frame: f}
		return true
	}
	n := min(int64(len(f.data)-f.sent), protocol.MaxChunk, f.credit, o.credit)
	if n <= 0 {
		return false
	}
	f.credit -= n
	o.credit -= n
	part := f.data[f.sent : f.sent+int(n)]
	f.sent += int(n)
	flags := byte(0)
	if f.sent == len(f.data) {
		flags, f.begun = protocol.FlagEnd, true
		o.drop(f)
	}
	*p = piece{binary: true, data: append(header(scratch[:0], f.stream, flags), part...), frame: f, last: f.begun}
	return true
}

func (o *outbox) assign(f *outFrame) {
	if o.lastStream == 0 {
		o.lastStream = o.step
	} else {
		o.lastStream += 2
	}
	f.stream, f.opened = o.lastStream, true
	if o.open == nil {
		o.open = map[uint32]*outFrame{}
	}
	o.open[f.stream] = f
}

// grant adds the peer's credit; a text says how it breaks the protocol.
func (o *outbox) grant(stream uint32, n int64) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := &o.credit
	if stream != 0 {
		f := o.open[stream]
		if f == nil {
			if stream > o.lastStream || stream%2 != o.step%2 {
				return "credit for a stream that was never opened"
			}
			return "" // it ended meanwhile
		}
		at = &f.credit
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
