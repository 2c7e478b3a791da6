package mux

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
)

// Violation ends a session because the peer broke the protocol.
type Violation struct{ Reason string }

// Error implements error.
func (v *Violation) Error() string { return "protocol violation: " + v.Reason }

// ErrDead ends a session on which nothing came, or nothing could be written, for twice the
// keep-alive interval.
var ErrDead = errors.New("no sign of life from the peer")

// ErrSlow ends a session whose peer asks for answers without reading them.
var ErrSlow = errors.New("the peer doesn't read its answers")

// ClosedError ends a session that this side closed.
type ClosedError struct {
	Code   int
	Reason string
}

// Error implements error.
func (e *ClosedError) Error() string { return fmt.Sprintf("closed: %s (%d)", e.Reason, e.Code) }

// Stats counts what a session turned away without ending.
type Stats struct {
	Late      int64 // responses and progress for no open call
	Ignored   int64 // cancels and pongs that nothing waits for
	Busy      int64 // requests above MaxCalls
	Duplicate int64 // requests with an id seen before: dropped, or refused when nothing else answers them
}

// Session is one connection's protocol after the handshake. Its methods may be called from
// any goroutine.
//
// Its locks are released by defer, but where nothing is done under them that could panic:
// fields and maps are read and set. So a panic that ends the session leaves none locked, and
// who still holds an end of it gets its error.
type Session struct {
	pipe   Pipe
	cfg    Config
	ctx    context.Context // ends with the session; its cause is ErrCut with the reason
	cancel context.CancelCauseFunc

	out   outbox
	in    inbox
	calls calls
	work  work
	pings pings
	files budget                 // calls with a file's stream
	boot  atomic.Pointer[string] // what the agent announced

	base       time.Time    // lastRead and writeSince are nanoseconds since then
	lastRead   atomic.Int64 // when a message came last
	writeSince atomic.Int64 // when the running write began; 0: none runs
	timer      *time.Timer

	late, ignored, busy, duplicate atomic.Int64

	ended  atomic.Bool
	err    error         // why it ended; read after ctx is done
	closed chan struct{} // the pipe's Close has returned
}

// New makes a session over a pipe whose handshake is done. Calls may be made at once; they
// wait for Run. Whoever makes a session must Run it.
func New(pipe Pipe, cfg Config) *Session {
	if cfg.MaxCalls == 0 {
		cfg.MaxCalls = 256
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = protocol.KeepAlive
	}
	s := &Session{pipe: pipe, cfg: cfg, base: time.Now(), closed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if cfg.Version == 0 {
		s.cfg.Version = protocol.Version
	}
	step := uint32(1)
	if cfg.Handler != nil {
		step = 2
	}
	s.out.init(step)
	s.in.init(3 - step)
	s.files.free = protocol.MaxFiles
	return s
}

// Run reads and writes until the session ends, and returns why: *Violation, ErrDead,
// ErrSlow, *ClosedError, *protocol.CloseError (the peer closed), or the pipe's error. When
// ctx ends, so does the session (1001). Handlers may still run when Run returns.
func (s *Session) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		defer fault.Catch(s.caught())
		s.Close(protocol.CloseGoingAway, "shutting down")
	})
	defer stop()
	s.startTimer()
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		s.writeLoop()
	}()
	s.readLoop()
	<-wrote
	<-s.closed
	return s.err
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Alive tells that the session hasn't ended.
func (s *Session) Alive() bool { return s.ctx.Err() == nil }

// Stats returns the counters.
func (s *Session) Stats() Stats {
	return Stats{Late: s.late.Load(), Ignored: s.ignored.Load(), Busy: s.busy.Load(), Duplicate: s.duplicate.Load()}
}

// Open tells how many calls wait for their response, or are being handled.
func (s *Session) Open() int { return s.calls.len() + s.work.len() }

// Going tells how many calls wait for their response and weren't cancelled.
func (s *Session) Going() int { return s.calls.going() }

// Close ends the session with a code and a reason for the peer (at most 120 bytes); open
// calls end with ErrCut. Code 0 says nothing and doesn't wait.
func (s *Session) Close(code int, reason string) {
	s.end(&ClosedError{Code: code, Reason: reason}, code, reason)
}

// Goodbye tells the peer that it's about to be disconnected and when to come back, and
// closes once that is written.
func (s *Session) Goodbye(reason string, retryAfter time.Duration) {
	b, err := protocol.Encode(&protocol.Goodbye{Type: protocol.TypeGoodbye, Reason: text.Line(reason, protocol.MaxLine), RetryAfterMS: retryAfter.Milliseconds()})
	if err != nil {
		s.Close(protocol.CloseGoingAway, reason)
		return
	}
	s.out.push(&outFrame{data: b, after: func() { s.Close(protocol.CloseGoingAway, reason) }})
}

// Send writes a frame that isn't part of a call: facts, log, config, epoch, resume. It waits
// for room, not for the write.
func (s *Session) Send(ctx context.Context, frame any) error {
	b, err := protocol.Encode(frame)
	if err != nil {
		return err
	}
	if len(b) > protocol.MaxFrame {
		return protocol.Errorf(protocol.CodeTooLarge, "a frame of %d bytes; the limit is %d", len(b), protocol.MaxFrame)
	}
	f := &outFrame{data: b}
	if err := s.reserve(ctx, f); err != nil {
		return err
	}
	s.out.push(f)
	return nil
}

// reserve takes a slot for f and, when it's long, its share of the budget.
func (s *Session) reserve(ctx context.Context, f *outFrame) error {
	if size := int64(len(f.data)); size > protocol.MaxMessage {
		if err := s.out.bytes.acquire(ctx, s.ctx, size); err != nil {
			return err
		}
		f.budget = size
	}
	select {
	case s.out.slots <- struct{}{}:
		f.slot = true
		return nil
	default:
	}
	var err error
	select {
	case s.out.slots <- struct{}{}:
		f.slot = true
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-s.ctx.Done():
		err = context.Cause(s.ctx)
	}
	s.out.release(f)
	return err
}

// force queues what the session says by itself. It never waits.
func (s *Session) force(frame any) {
	b, err := protocol.Encode(frame)
	if err != nil {
		s.end(err, protocol.CloseViolation, "internal error")
		return
	}
	if !s.out.force(b) {
		s.end(ErrSlow, protocol.CloseSlow, "answers are not being read")
	}
}

func (s *Session) violate(format string, args ...any) {
	v := &Violation{Reason: text.Line(fmt.Sprintf(format, args...), 120)}
	s.end(v, protocol.CloseViolation, v.Reason)
}

// Broke ends the session because of a panic in what is done for it beside it, as one of its
// own goroutines would: as if the connection had been cut.
func (s *Session) Broke(p *fault.Panic) {
	if s.cfg.Panicked != nil {
		s.cfg.Panicked("", p)
	}
	s.end(p, 0, "")
}

// caught is what becomes of a panic of the connection's: what its reader or writer keeps can't
// be trusted, so it ends.
func (s *Session) caught() func(*fault.Panic) {
	if s.cfg.Panicked == nil {
		return nil
	}
	return s.Broke
}

// caughtIn is what becomes of a panic of one call's: what then does. The others go on.
func (s *Session) caughtIn(call string, then func(*fault.Panic)) func(*fault.Panic) {
	if s.cfg.Panicked == nil {
		return nil
	}
	return func(p *fault.Panic) {
		s.cfg.Panicked(call, p)
		then(p)
	}
}

// end ends the session once. It may be called from anywhere and doesn't wait.
func (s *Session) end(err error, code int, reason string) {
	if !s.ended.CompareAndSwap(false, true) {
		return
	}
	s.err = err
	s.stopTimer()
	s.cancel(fmt.Errorf("%w: %w", protocol.ErrCut, err))
	defer func() { go s.closePipe(code, reason) }() // whatever Ended does
	if s.cfg.Ended != nil {
		s.cfg.Ended(err)
	}
}

func (s *Session) closePipe(code int, reason string) {
	defer close(s.closed)
	defer fault.Catch(s.caught())
	// Nobody is left to tell about a failing close: the session has ended either way.
	_ = s.pipe.Close(code, text.Line(reason, 120))
}

func (s *Session) now() int64 { return int64(time.Since(s.base)) + 1 }

// writeLoop is the one writer.
func (s *Session) writeLoop() {
	defer fault.Catch(s.caught())
	var p piece
	for s.ctx.Err() == nil {
		scratch := chunks.get()
		if !s.out.next(&p, *scratch) {
			chunks.put(scratch)
			select {
			case <-s.out.wake:
			case <-s.ctx.Done():
			}
			continue
		}
		err := s.writePiece(&p)
		chunks.put(scratch)
		if err != nil {
			s.end(err, 0, "")
			return
		}
	}
}

func (s *Session) writePiece(p *piece) error {
	if p.data == nil { // a stream begins
		b, err := protocol.Encode(&p.stream.open)
		if err != nil {
			return err
		}
		p.data = b
	}
	s.writeSince.Store(s.now())
	err := s.pipe.Write(context.Background(), p.binary, p.data)
	s.writeSince.Store(0)
	if err != nil {
		return err
	}
	if p.last {
		if after := s.out.written(p); after != nil {
			after()
		}
	}
	return nil
}

// chunkPool lends the writers their buffers, so that an idle connection holds none.
type chunkPool struct{ pool sync.Pool }

func (c *chunkPool) get() *[]byte {
	if b, ok := c.pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, protocol.MaxChunk+protocol.ChunkHeader)
	return &b
}

func (c *chunkPool) put(b *[]byte) { c.pool.Put(b) }

var chunks chunkPool // buffers without content: no state
