package fault

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// ErrPipe is what a Pipe's ends say of one that is cut or closed.
var ErrPipe = errors.New("fault: the pipe has ended")

// Message is one message of a Pipe.
type Message struct {
	Binary bool
	Data   []byte
	// N counts the messages of this way, from 1; Bytes the payload before this message.
	N, Bytes int
}

// Pipe is one end of a pair of mux.Pipes in memory.
type Pipe struct {
	in, out chan Message
	mine    *ending
	theirs  *ending
	judge   func(Message) Verdict

	mu       sync.Mutex
	n, bytes int // of what this end wrote
}

// ending is the end of one side.
type ending struct {
	once   sync.Once
	done   chan struct{}
	code   int
	reason string
}

func (e *ending) end(code int, reason string) {
	e.once.Do(func() {
		e.code, e.reason = code, reason
		close(e.done)
	})
}

// Pipes makes a pair that holds up to room messages each way. judge of an end decides about
// what that end writes, as of a Wire's frames (CutHalf is CutBefore: a message arrives whole
// or not at all); it may hold the write up, and nil lets all pass.
func Pipes(room int, judgeA, judgeB func(Message) Verdict) (a, b *Pipe) {
	ab, ba := make(chan Message, room), make(chan Message, room)
	ea, eb := &ending{done: make(chan struct{})}, &ending{done: make(chan struct{})}
	return &Pipe{in: ba, out: ab, mine: ea, theirs: eb, judge: judgeA}, &Pipe{in: ab, out: ba, mine: eb, theirs: ea, judge: judgeB}
}

var _ mux.Pipe = (*Pipe)(nil)

// Read implements mux.Pipe.
func (p *Pipe) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case m := <-p.in:
		return m.Binary, m.Data, nil
	default:
	}
	select {
	case m := <-p.in:
		return m.Binary, m.Data, nil
	case <-p.mine.done:
		return false, nil, ErrPipe
	case <-ctx.Done():
		return false, nil, context.Cause(ctx)
	case <-p.theirs.done:
	}
	select { // what came before the end counts
	case m := <-p.in:
		return m.Binary, m.Data, nil
	default:
	}
	p.mine.end(0, "")
	if p.theirs.code == 0 {
		return false, nil, ErrPipe
	}
	return false, nil, &protocol.CloseError{Code: p.theirs.code, Reason: p.theirs.reason}
}

// Write implements mux.Pipe.
func (p *Pipe) Write(ctx context.Context, isBinary bool, data []byte) error {
	p.mu.Lock()
	p.n++
	m := Message{Binary: isBinary, Data: bytes.Clone(data), N: p.n, Bytes: p.bytes}
	p.bytes += len(data)
	p.mu.Unlock()
	v := Pass
	if p.judge != nil {
		v = p.judge(m)
	}
	times := map[Verdict]int{Pass: 1, CutAfter: 1, Twice: 2}[v]
	for range times {
		select {
		case <-p.mine.done:
			return ErrPipe
		case <-p.theirs.done:
			return ErrPipe
		case <-ctx.Done():
			return context.Cause(ctx)
		case p.out <- m:
		}
	}
	if v == CutBefore || v == CutHalf || v == CutAfter {
		p.Cut()
		return ErrPipe
	}
	return nil
}

// Cut ends both ends without a word. What is on the way may or may not arrive.
func (p *Pipe) Cut() {
	p.mine.end(0, "")
	p.theirs.end(0, "")
}

// Done is closed when this end has ended.
func (p *Pipe) Done() <-chan struct{} { return p.mine.done }

// Close implements mux.Pipe.
func (p *Pipe) Close(code int, reason string) error {
	p.mine.end(code, reason)
	return nil
}
