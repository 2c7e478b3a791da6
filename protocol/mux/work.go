package mux

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// work is what the agent's side executes, and the calls of earlier connections that it
// answers over this one.
type work struct {
	mu      sync.Mutex
	running map[string]*Work
	resumed int             // how many of running are of earlier connections
	seen    map[string]bool // running and recent ids, and whether their file has come
	ended   recent
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

// begin admits a request. One that is turned away was seen, too.
func (w *work) begin(c *Work, limit int) admission {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.seen[c.id]; ok {
		return repeated
	}
	if len(w.running)-w.resumed >= limit {
		w.see(c.id)
		w.end(c.id)
		return tooMany
	}
	w.add(c)
	return admitted
}

// rejoin takes in a call of an earlier connection, unless its answer is under way already.
func (w *work) rejoin(c *Work) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[c.id] != nil {
		return false
	}
	w.add(c)
	w.resumed++
	return true
}

func (w *work) add(c *Work) {
	if w.running == nil {
		w.running = map[string]*Work{}
	}
	w.running[c.id] = c
	w.see(c.id)
}

func (w *work) see(id string) {
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	if _, known := w.seen[id]; !known {
		w.seen[id] = false
	}
}

func (w *work) end(id string) {
	if old := w.ended.add(id); old != "" && w.running[old] == nil {
		delete(w.seen, old)
	}
}

func (w *work) finish(c *Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, c.id)
	if c.resumed {
		w.resumed--
	}
	w.end(c.id)
}

func (w *work) cancel(id, reason string) bool {
	w.mu.Lock()
	c := w.running[id]
	w.mu.Unlock()
	if c == nil {
		return false
	}
	c.cancel(&CancelError{Reason: text.Line(reason, protocol.MaxLine)})
	return true
}

// attach gives a file's stream to the call that it belongs to; a text says how it breaks the
// protocol. Nobody takes one of a call that has ended or was turned away.
func (w *work) attach(id string, f *inFile) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.running[id]
	came, known := w.seen[id]
	switch {
	case !known || c != nil && c.resumed:
		return "a file's stream of an unknown call"
	case came:
		return "a second file's stream of one call"
	}
	w.seen[id] = true
	if c == nil {
		f.leave()
	} else {
		c.attach(f)
	}
	return ""
}

func (s *Session) onRequest(r *protocol.Request) {
	if bad := badRequest(r); bad != "" {
		s.violate("%s", bad)
		return
	}
	w := s.newWork(r.ID, r.Progress)
	switch s.work.begin(w, s.cfg.MaxCalls) {
	case admitted:
		go s.handle(w, r)
		return
	case tooMany:
		s.busy.Add(1)
		s.refuse(r.ID, &protocol.Error{Code: protocol.CodeRateLimited, Reason: protocol.ReasonBusy, Message: "this agent runs as many calls as it may; try again when some have ended"})
	case repeated:
		s.duplicate.Add(1)
		s.refuse(r.ID, &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate, Message: "this call id came over this connection already; it was not run again"})
	}
	w.cancel(nil)
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

func (s *Session) handle(w *Work, r *protocol.Request) {
	if w.ctx.Err() != nil { // the connection ended, or the call was cancelled, before it began
		resp := neverBegan(w.ctx)
		w.end()
		s.work.finish(w)
		s.answer(r.ID, resp, 0)
		return
	}
	began := time.Now()
	resp := w.settle(s.cfg.Handler.Handle(w.ctx, r, w))
	w.end()
	s.work.finish(w)
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
