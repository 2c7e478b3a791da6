package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// maxForwarded bounds the calls of one replica to one agent; the agent's own limit is lower.
const maxForwarded = 512

// How the holder tells the caller's replica what it can't know itself. An agent's own words
// never have such a reason.
const (
	reasonPrefix   = "hop_"
	reasonNotSent  = "hop_not_sent"
	reasonCut      = "hop_cut"
	reasonNoAnswer = "hop_no_answer"
	noteUnasked    = "hop_unasked"
)

// hopError is an error that the holder had, with its words.
type hopError struct {
	is   error
	text string
}

func (e *hopError) Error() string { return e.text }
func (e *hopError) Unwrap() error { return e.is }

// across turns a holder's word back into the error that it stands for.
func across(r *protocol.Response) (*protocol.Response, error) {
	if r.Error == nil {
		return r, nil
	}
	switch r.Error.Reason {
	case reasonNotSent:
		return nil, &hopError{protocol.ErrNotSent, r.Error.Message}
	case reasonCut:
		return nil, &hopError{protocol.ErrCut, r.Error.Message}
	case reasonNoAnswer:
		return nil, &hopError{protocol.ErrNoAnswer, r.Error.Message}
	}
	return r, nil
}

// wrap is the other way.
func wrap(resp *protocol.Response, err error) *protocol.Response {
	if err == nil {
		if resp.Error != nil && strings.HasPrefix(resp.Error.Reason, reasonPrefix) {
			e := *resp.Error
			e.Reason = "other"
			resp.Error = &e
		}
		return resp
	}
	e := &protocol.Error{Code: protocol.CodeOutcomeUnknown, Reason: reasonCut, Message: text.Line(err.Error(), protocol.MaxLine)}
	switch {
	case errors.Is(err, protocol.ErrNotSent):
		e.Code, e.Reason = protocol.CodeNotStarted, reasonNotSent
	case errors.Is(err, protocol.ErrNoAnswer):
		e.Reason = reasonNoAnswer
	}
	return &protocol.Response{Error: e}
}

// accept makes this end of a pipe and runs its session.
func (b *Bus) accept(o *opening, a *opened, e presence.Entry) error {
	if !strings.HasPrefix(o.Pipe, b.prefix+"pipe."+o.From+".") {
		return errForged
	}
	word := token()
	a.Own, a.Pipe = token(), b.prefix+"pipe."+b.replica+"."+word
	there, back, err := b.keys.sequences(o.Nonce, a.Own)
	if err != nil {
		return err
	}
	p := b.newPipe(word, &pipe{to: o.Pipe, here: a.Pipe, in: there, out: back, strict: true})
	h := &holder{bus: b, entry: e, from: o.From, trace: b.cfg.Trace, resumed: map[string]*resumed{}}
	s := mux.New(p, mux.Config{Handler: h, Resumer: h, MaxCalls: maxForwarded, KeepAlive: pipeAlive, Panicked: b.panicked(o.From)})
	if !b.run(s, h.end) {
		return errStops
	}
	return nil
}

// holder executes the calls of one pipe on the one connection that it was opened for.
type holder struct {
	bus   *Bus
	entry presence.Entry
	from  string // the replica whose calls these are
	trace *tracing.Tracer

	mu      sync.Mutex
	resumed map[string]*resumed // nil once the pipe has ended
}

// end ends the waiting for calls whose fate was told and whose end nobody hears any more.
func (h *holder) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.resumed {
		r.cancel(mux.ErrDetached)
	}
	h.resumed = nil
}

// resumed is a question about an earlier call, from its fate to its response.
type resumed struct {
	fate   chan mux.Fate // holds the fate
	done   chan struct{}
	resp   *protocol.Response
	err    error
	cancel context.CancelCauseFunc
}

// outlive derives the context of a call on the agent: a cancel of the caller's reaches it;
// the end of the pipe only ends the wait, since the caller's replica may be gone and the
// call be taken over by another one.
func outlive(ctx context.Context) (context.Context, context.CancelCauseFunc, func() bool) {
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, protocol.ErrCut) {
			cancel(mux.ErrDetached)
		} else {
			cancel(reasonOf(cause))
		}
	})
	return call, cancel, stop
}

// reasonOf is the caller's own reason, without the words that each hop adds.
func reasonOf(cause error) error {
	if ce, ok := errors.AsType[*mux.CancelError](cause); ok && ce.Reason != "" {
		return errors.New(ce.Reason)
	}
	return cause
}

// untilAnswered counts a call until its answer is out.
func untilAnswered(w *mux.Work, count *atomic.Int64) {
	count.Add(1)
	w.Answered(func() { count.Add(-1) })
}

// Handle implements mux.Handler.
func (h *holder) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) (resp *protocol.Response) {
	untilAnswered(w, &h.bus.owed)
	defer fault.Catch(h.cut(req.ID, &resp))
	if req.Traceparent == "" {
		return h.pass(ctx, req, w)
	}
	if !protocol.ValidTraceparent(req.Traceparent) {
		req.Traceparent = ""
		return h.pass(ctx, req, w)
	}
	ctx, hop := h.trace.Start(h.trace.FromReplica(ctx, req.Traceparent), tracing.Server, "hop")
	defer hop.End()
	hop.Set(attrReplica, h.from)
	return h.pass(ctx, req, w)
}

// cut is what becomes of a panic here: the caller's replica hears of a cut, and asks the agent.
func (h *holder) cut(call string, resp **protocol.Response) func(*fault.Panic) {
	told := h.bus.caught("a call of another replica", "call", call, "agent", h.entry.Agent, "replica", h.from)
	return func(p *fault.Panic) {
		told(p)
		*resp = wrap(nil, protocol.ErrCut)
	}
}

// request makes the request to the agent.
func (h *holder) request(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	if req.Traceparent == "" || h.trace == nil {
		return h.entry.Session.Call(ctx, req, x)
	}
	ctx, span := h.trace.Start(ctx, tracing.Client, "tunnel request")
	defer span.End()
	req.Traceparent = span.Traceparent()
	resp, err := h.entry.Session.Call(ctx, req, x)
	if err != nil {
		span.Fail("no_response")
	} else {
		span.SetInt("drover.agent.took_us", resp.TookUS)
	}
	return resp, err
}

// pass makes the request to the agent, and passes on what belongs to it.
func (h *holder) pass(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	h.bus.served.Add(1)
	h.bus.inNow.Add(1)
	defer h.bus.inNow.Add(-1)
	call, cancel, stop := outlive(ctx)
	defer cancel(nil)
	defer stop()
	var x mux.Exchange
	if req.Progress {
		x.Progress = func(p protocol.Progress) { w.Progress(p.Message) }
	}
	def := capability.Find(req.Tool)
	if def != nil && def.Stream != capability.NoStream {
		untilAnswered(w, &h.bus.files)
		if h.bus.noFiles.Load() {
			return wrap(nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, errStops))
		}
	}
	if def != nil && def.Stream == capability.ToHost {
		body, size, err := w.In(call)
		if err != nil {
			return wrap(nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, err))
		}
		x.Body, x.Size = body, size
	} else if def != nil && def.Stream == capability.FromHost {
		up, err := w.Out(-1)
		if err != nil {
			return wrap(nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, err))
		}
		x.Sink = up
		resp, err := h.request(call, req, x)
		if err != nil || resp.Error != nil {
			up.Reset()
		} else if cerr := up.Close(); cerr != nil {
			err = fmt.Errorf("%w: %w", protocol.ErrCut, cerr)
		}
		return wrap(resp, err)
	}
	return wrap(h.request(call, req, x))
}

// Fates implements mux.Resumer: it asks the agent.
func (h *holder) Fates(ids []string) protocol.Resume {
	out := protocol.Resume{Type: protocol.TypeResume, Boot: h.entry.Session.Boot()}
	for _, id := range ids {
		fate, asked := h.ask(id).heard()
		if !asked {
			fate.ResumeState = protocol.ResumeState{ID: id, State: protocol.FateLost, Note: noteUnasked}
		} else if out.Boot = fate.Boot; strings.HasPrefix(fate.Note, reasonPrefix) {
			fate.Note = "" // an agent's own word
		}
		if fate.State != protocol.FateRunning && fate.State != protocol.FateDone {
			h.forget(id)
		}
		out.States = append(out.States, fate.ResumeState)
	}
	return out
}

// heard waits for the fate; false when the agent couldn't be asked.
func (r *resumed) heard() (mux.Fate, bool) {
	select {
	case fate := <-r.fate:
		return fate, true
	case <-r.done:
	}
	select {
	case fate := <-r.fate:
		return fate, true
	default:
		return mux.Fate{}, false
	}
}

// forget takes a question out, for whoever waits for its end.
func (h *holder) forget(id string) *resumed {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resumed[id]
	delete(h.resumed, id)
	return r
}

func (h *holder) ask(id string) *resumed {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &resumed{fate: make(chan mux.Fate, 1), done: make(chan struct{}), cancel: cancel}
	if h.resumed == nil {
		cancel(mux.ErrDetached)
	} else {
		if old := h.resumed[id]; old != nil {
			old.cancel(mux.ErrDetached) // who asked has given up
		}
		h.resumed[id] = r
	}
	go func() {
		defer close(r.done) // without a response or an error it was cut
		defer fault.Catch(h.bus.caught("a question about a call", "call", id, "agent", h.entry.Agent))
		_, r.resp, r.err = h.entry.Session.Resume(ctx, id, mux.Exchange{Fated: func(f mux.Fate) { r.fate <- f }})
	}()
	return r
}

// Rejoin implements mux.Resumer.
func (h *holder) Rejoin(ctx context.Context, id string, w *mux.Work) (resp *protocol.Response) {
	untilAnswered(w, &h.bus.owed)
	defer fault.Catch(h.cut(id, &resp))
	r := h.forget(id)
	if r == nil {
		return wrap(nil, fmt.Errorf("%w: nobody asked for it", protocol.ErrNotSent))
	}
	stop := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, protocol.ErrCut) {
			r.cancel(mux.ErrDetached)
		} else {
			r.cancel(reasonOf(cause))
		}
	})
	defer stop()
	<-r.done
	r.cancel(nil)
	if r.err == nil && r.resp == nil {
		return wrap(nil, protocol.ErrCut)
	}
	return wrap(r.resp, r.err)
}
