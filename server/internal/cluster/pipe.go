package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

const (
	// acceptFor is how old a message with a request may be when it's read: a replica that was
	// stopped and comes back starts nothing that was asked of it before.
	// It's also how far ahead another replica's clock may be.
	acceptFor = 2 * time.Second
	// waiting bounds the messages that were received and not read yet; credit keeps a healthy
	// peer far below it.
	waiting = 4096
	// head is the length of what stands before a message's content: kind, and the time of
	// sending in microseconds.
	head = 9
)

// Kinds of a pipe's messages.
const (
	kindText byte = iota + 1
	kindBinary
	kindClose
)

var (
	errStale = errors.New("cluster: a message between replicas came too late to be acted on, or the clocks of the replicas differ")
	errFull  = errors.New("cluster: messages between replicas come faster than they're read")
)

// pipe is a mux.Pipe between two replicas: sealed, numbered messages over NATS, which loses
// some when it's in trouble. Any loss ends the pipe.
type pipe struct {
	publish  func(subject string, data []byte) error
	to, here string // subjects
	strict   bool   // what comes may start something: see acceptFor
	now      func() time.Time

	writing sync.Mutex // Close may write beside the one writer
	out     *sequence
	in      *sequence // used by receive alone

	come  chan []byte
	ended chan struct{}
	once  sync.Once
	why   error // why it ended; read after ended is closed
	gone  func()
	// refused hears of messages that aren't the peer's.
	refused func(error)
}

// receive takes a message from NATS, which calls it for one at a time. It never blocks. What
// isn't the peer's next message is counted and passed over: anyone may publish here. Only a
// gap before one that is the peer's ends the pipe.
func (p *pipe) receive(data []byte) {
	taken := false
	defer func() { // a message that was lost to a panic would not be missed
		if !taken {
			p.end(errGap)
		}
	}()
	p.take(data)
	taken = true
}

func (p *pipe) take(data []byte) {
	plain, err := p.in.unseal(p.here, data)
	switch {
	case errors.Is(err, errForged), errors.Is(err, errReplay):
		p.refused(err)
		return
	case err != nil || len(plain) < head:
		p.end(errGap)
		return
	}
	select {
	case p.come <- plain:
	default:
		p.end(errFull)
	}
}

func (p *pipe) end(why error) {
	p.once.Do(func() {
		p.why = why
		close(p.ended)
		p.gone()
	})
}

// Read implements mux.Pipe.
func (p *pipe) Read(ctx context.Context) (isBinary bool, msg []byte, err error) {
	select {
	case <-p.ended:
		return false, nil, p.why
	case <-ctx.Done():
		return false, nil, context.Cause(ctx)
	case plain := <-p.come:
		return p.open(plain)
	}
}

// open looks at a message when it's about to be acted on: it may have waited here, too.
func (p *pipe) open(plain []byte) (isBinary bool, msg []byte, err error) {
	kind, content := plain[0], plain[head:]
	sent := time.UnixMicro(int64(binary.BigEndian.Uint64(plain[1:])))
	// A large request comes in binary messages, so these count as well.
	if p.strict && kind != kindClose && stale(p.now().Sub(sent)) {
		p.refused(errStale)
		p.end(errStale)
		return false, nil, errStale
	}
	switch kind {
	case kindText, kindBinary:
		return kind == kindBinary, content, nil
	case kindClose:
		err := error(&protocol.CloseError{Code: protocol.CloseNormal})
		if len(content) >= 2 {
			err = &protocol.CloseError{Code: int(binary.BigEndian.Uint16(content)), Reason: text.Line(string(content[2:]), 120)}
		}
		p.end(err)
		return false, nil, err
	default:
		p.end(errGap)
		return false, nil, errGap
	}
}

// stale tells that a message of this age must start nothing.
func stale(age time.Duration) bool { return age > acceptFor || age < -acceptFor }

// Write implements mux.Pipe.
func (p *pipe) Write(_ context.Context, isBinary bool, msg []byte) error {
	kind := kindText
	if isBinary {
		kind = kindBinary
	}
	return p.send(kind, msg)
}

func (p *pipe) send(kind byte, content []byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	select {
	case <-p.ended:
		return p.why
	default:
	}
	var front [head]byte
	front[0] = kind
	binary.BigEndian.PutUint64(front[1:], uint64(p.now().UnixMicro()))
	if err := p.publish(p.to, p.out.seal(p.to, front[:], content)); err != nil { // publish keeps nothing of it
		err = fmt.Errorf("cluster: a message to another replica was not sent: %w", err)
		p.end(err)
		return err
	}
	return nil
}

// Close implements mux.Pipe.
func (p *pipe) Close(code int, reason string) error {
	var err error
	if code != 0 {
		err = p.send(kindClose, append(binary.BigEndian.AppendUint16(nil, uint16(code)), text.Cut(reason, 120)...))
	}
	p.end(errors.New("cluster: closed"))
	return err
}
