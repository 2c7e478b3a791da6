package mux

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
)

// work is what the agent's side executes, and the calls of earlier connections that it
// answers over this one.
type work struct {
	mu      sync.Mutex
	running map[string]*Work
	resumed int              // how many of running are of earlier connections
	seen    map[string]sight // running and recent ids
	ended   recent
}

// sight is what came of a call over this connection.
type sight struct {
	file     bool // its file
	answered bool // its request, or a question after it that is answered: its one response is, or will be, on its way
}

type admission int

const (
	admitted admission = iota
	tooMany
	late    // it was said of it that it never will begin
	doubled // it's answered already
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
	sight, known := w.seen[c.id]
	if sight.answered || w.running[c.id] != nil {
		return doubled
	}
	sight.answered = true
	w.see(c.id, sight)
	switch {
	case known:
		return late
	case len(w.running)-w.resumed >= limit:
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
	w.see(c.id, w.seen[c.id])
	w.add(c)
	w.resumed++
	return true
}

func (w *work) add(c *Work) {
	if w.running == nil {
		w.running = map[string]*Work{}
	}
	w.running[c.id] = c
}

func (w *work) see(id string, s sight) {
	if w.seen == nil {
		w.seen = map[string]sight{}
	}
	w.seen[id] = s
}

func (w *work) end(id string) {
	if old := w.ended.add(id); old != "" && w.running[old] == nil {
		delete(w.seen, old)
	}
}

// finish ends a call; answered tells that its response goes out over this connection.
func (w *work) finish(c *Work, answered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, c.id)
	if s := w.seen[c.id]; answered && !s.answered {
		s.answered = true
		w.see(c.id, s)
	}
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
	sight, known := w.seen[id]
	switch {
	case !known || c != nil && c.resumed:
		return "a file's stream of an unknown call"
	case sight.file:
		return "a second file's stream of one call"
	}
	sight.file = true
	w.see(id, sight)
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
	case doubled:
		// Whatever were said of it would be taken for the end of the call that it repeats.
		s.duplicate.Add(1)
		s.notify(&Doubled{ID: r.ID})
	case late:
		s.duplicate.Add(1)
		s.refuse(r.ID, &protocol.Error{Code: protocol.CodeConflict, Reason: protocol.ReasonDuplicate, Message: "the server asked for this call before it sent it, and was told that it never will run; it was not run"})
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
	defer fault.Catch(s.caught())
	defer w.answered()
	if w.ctx.Err() != nil { // the connection ended, or the call was cancelled, before it began
		resp := neverBegan(w.ctx)
		w.end()
		s.work.finish(w, true)
		s.answer(w, resp, 0)
		return
	}
	began := time.Now()
	resp := w.settle(s.execute(r.ID, func() *protocol.Response { return s.cfg.Handler.Handle(w.ctx, r, w) }))
	w.end()
	s.work.finish(w, true)
	s.answer(w, resp, time.Since(began))
}

// execute has a call's response made. A panic there is that call's alone, and nobody knows how
// far it had come.
func (s *Session) execute(id string, do func() *protocol.Response) (resp *protocol.Response) {
	defer fault.Catch(s.caughtIn(id, func(*fault.Panic) {
		resp = &protocol.Response{Error: protocol.Errorf(protocol.CodeOutcomeUnknown, "it failed inside, and may have run, run in part, or not at all; the log there says more")}
	}))
	return do()
}

// neverBegan answers a call that was cancelled before its handler ran. When the connection
// has ended, nobody hears it.
func neverBegan(ctx context.Context) *protocol.Response {
	return &protocol.Response{Error: protocol.Errorf(protocol.CodeCancelled, "it did not start: %v", context.Cause(ctx))}
}

// answer sends the response; one that can't be sent as it is becomes an error of its own. It
// waits until it was written if anybody wants to know.
func (s *Session) answer(w *Work, resp *protocol.Response, took time.Duration) {
	if resp == nil {
		resp = &protocol.Response{Error: protocol.Errorf(protocol.CodeInternal, "the agent's handler gave no response")}
	}
	out := *resp
	out.Type, out.ID = protocol.TypeResponse, w.id
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
	f := &outFrame{data: b, id: w.id}
	if len(w.awaited()) > 0 {
		s.pushWhole(f)
	} else if s.reserve(s.ctx, f) == nil { // else the connection is gone and nobody waits
		s.out.push(f)
	}
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
