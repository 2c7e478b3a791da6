package mux

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// maxRecent is how many finished calls' ids an agent's side remembers, to turn away repeats.
const maxRecent = 1024

// work is what the agent's side executes.
type work struct {
	mu      sync.Mutex
	running map[string]context.CancelCauseFunc
	seen    map[string]struct{} // running and recent ids
	recent  []string            // a ring of finished ids
	oldest  int
}

type admission int

const (
	admitted admission = iota
	tooMany
	repeated
)

func (w *work) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

func (w *work) begin(id string, cancel context.CancelCauseFunc, limit int) admission {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		w.running, w.seen = map[string]context.CancelCauseFunc{}, map[string]struct{}{}
	}
	if _, ok := w.seen[id]; ok {
		return repeated
	}
	if len(w.running) >= limit {
		return tooMany
	}
	w.running[id] = cancel
	w.seen[id] = struct{}{}
	return admitted
}

func (w *work) finish(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, id)
	if len(w.recent) < maxRecent {
		w.recent = append(w.recent, id)
		return
	}
	delete(w.seen, w.recent[w.oldest])
	w.recent[w.oldest] = id
	w.oldest = (w.oldest + 1) % maxRecent
}

func (w *work) cancel(id, reason string) bool {
	w.mu.Lock()
	cancel := w.running[id]
	w.mu.Unlock()
	if cancel == nil {
		return false
	}
	cancel(&CancelError{Reason: text.Line(reason, protocol.MaxLine)})
	return true
}

func (s *Session) onRequest(r *protocol.Request) {
	if bad := badRequest(r); bad != "" {
		s.violate("%s", bad)
		return
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	switch s.work.begin(r.ID, cancel, s.cfg.MaxCalls) {
	case admitted:
		go s.handle(ctx, cancel, r)
		return
	case tooMany:
		s.busy.Add(1)
		s.refuse(r.ID, &protocol.Error{Code: protocol.CodeRateLimited, Reason: protocol.ReasonBusy, Message: "this agent runs as many calls as it may; try again when some have ended"})
	case repeated:
		s.duplicate.Add(1)
		s.refuse(r.ID, &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate, Message: "this call id came over this connection already; it was not run again"})
	}
	cancel(nil)
}

func (s *Session) refuse(id string, e *protocol.Error) {
	s.force(&protocol.Response{Type: protocol.TypeResponse, ID: id, Error: e})
}

func badRequest(r *protocol.Request) string {
	switch {
	case r.ID == "" || len(r.ID) > protocol.MaxName:
		return "a request without a proper id"
	case r.Tool == "" || len(r.Tool) > protocol.MaxName:
		return "a request without a proper tool"
	case len(r.Args) == 0 || r.Args[0] != '{':
		return "a request whose args aren't an object"
	case r.DeadlineMS < 1 || r.DeadlineMS > protocol.MaxDeadlineMS:
		return "a request with a deadline out of range"
	case r.NotAfterMS < 0:
		return "a request with a negative not_after"
	}
	return ""
}

func (s *Session) handle(ctx context.Context, cancel context.CancelCauseFunc, r *protocol.Request) {
	if ctx.Err() != nil { // the connection ended, or the call was cancelled, before it began
		cancel(nil)
		s.work.finish(r.ID)
		s.answer(r.ID, neverBegan(ctx), 0)
		return
	}
	began := time.Now()
	w := &Work{reporter: reporter{s: s, id: r.ID, wanted: r.Progress}}
	resp := s.cfg.Handler.Handle(ctx, r, w)
	w.stop()
	cancel(nil)
	s.work.finish(r.ID)
	s.answer(r.ID, resp, time.Since(began))
}

// neverBegan answers a call that was cancelled before its handler ran. When the connection
// has ended, nobody hears it.
func neverBegan(ctx context.Context) *protocol.Response {
	return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "it did not start: %v", context.Cause(ctx))}
}

// answer sends the response; one that can't be sent as it is becomes an error of its own.
func (s *Session) answer(id string, resp *protocol.Response, took time.Duration) {
	if resp == nil {
		resp = &protocol.Response{Error: protocol.Errorf(protocol.CodeInternal, "the agent's handler gave no response")}
	}
	out := *resp
	out.Type, out.ID = protocol.TypeResponse, id
	if out.TookUS <= 0 {
		out.TookUS = took.Microseconds()
	}
	if out.Error != nil {
		e := *out.Error
		e.Message = strings.ToValidUTF8(e.Message, "\uFFFD")
		if !e.WellFormed() {
			e = protocol.Error{Code: protocol.CodeInternal, Message: "the agent made a malformed error: " + text.Line(e.Error(), protocol.MaxLine)}
		}
		out.Error = &e
	}
	if size := len(out.Result); size > protocol.MaxFrame {
		out.Result, out.Error = nil, tooLarge(size)
	}
	b, err := protocol.Encode(&out)
	if err == nil && len(b) > protocol.MaxFrame {
		err = tooLarge(len(b))
	}
	if err != nil {
		b = encodeFailure(&out, err)
	}
	f := &outFrame{data: b, id: id}
	if s.reserve(s.ctx, f) != nil {
		return // the connection is gone and nobody waits
	}
	s.out.push(f)
}

func tooLarge(size int) *protocol.Error {
	return protocol.Errorf(protocol.CodeTooLarge, "the answer has about %d bytes, more than the %d that fit; ask for less", size, protocol.MaxFrame)
}

func encodeFailure(r *protocol.Response, err error) []byte {
	e, ok := err.(*protocol.Error)
	if !ok {
		e = protocol.Errorf(protocol.CodeInternal, "the agent couldn't encode its answer: %s", text.Line(err.Error(), protocol.MaxLine))
	}
	b, err := protocol.Encode(&protocol.Response{ID: r.ID, Error: e, TookUS: r.TookUS})
	if err != nil { // only an id that isn't UTF-8 does this, and such a request isn't decoded
		return []byte(`{"type":"goodbye","reason":"internal error"}`)
	}
	return b
}

// Work is a call's way back over its connection, for the handler that executes it.
type Work struct {
	reporter
	tell func(string) // in place of a connection
}

// Detached is a Work without a connection: progress goes to the function.
func Detached(progress func(string)) *Work { return &Work{tell: progress} }

// Progress sends one line, cut to 512 bytes, to a caller that asked for it; otherwise and
// when the connection is congested it does nothing. It never blocks and may be called from
// any goroutine until Handle returns.
func (w *Work) Progress(message string) {
	if w.tell != nil {
		w.tell(message)
		return
	}
	w.report(message)
}

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
