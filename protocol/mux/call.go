package mux

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// maxNews bounds the progress frames that wait for one caller; the oldest are dropped.
const maxNews = 16

// calls are those that wait for a response on this connection, by call id. There is no
// other way to a waiting call: a response can't reach one of another connection.
type calls struct {
	mu   sync.Mutex
	open map[string]*call
	left recent // calls that were given up unanswered, and may still send a file
}

type call struct {
	wake chan struct{} // one token: news or the response
	// Under calls.mu:
	response *protocol.Response
	fate     *Fate // of a call that is resumed
	news     []protocol.Progress
	seq      int64
	wanted   bool
	resumed  bool // it was sent over an earlier connection
	ending   bool // its cancel was sent
	file     *inFile
	arrived  chan *inFile // hands file to who takes it; nil: nobody does
}

func (c *calls) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// going counts those whose end wasn't asked for.
func (c *calls) going() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.open {
		if !w.ending {
			n++
		}
	}
	return n
}

// end notes that a call's end is asked for.
func (c *calls) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.open[id]; w != nil {
		w.ending = true
	}
}

func (c *calls) add(id string, progress, resumed bool) (*call, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[string]*call{}
	}
	if c.open[id] != nil {
		return nil, false
	}
	w := &call{wake: make(chan struct{}, 1), wanted: progress, resumed: resumed}
	c.open[id] = w
	return w, true
}

func (c *calls) remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
}

// giveUp is remove of a call that the agent hasn't answered.
func (c *calls) giveUp(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.open[id]; w != nil && w.file == nil && !w.resumed {
		c.left.add(id)
	}
	delete(c.open, id)
}

// respond takes a response; ok is false when no call waits for it, and a text says how it
// breaks the protocol.
func (c *calls) respond(r *protocol.Response) (ok bool, bad string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.open[r.ID]
	switch {
	case w == nil || w.response != nil || w.resumed && (!w.fate.follows() || isDuplicate(r)):
		return false, ""
	case w.file != nil && !w.file.over():
		return false, "a response before the end of its file"
	}
	w.response = r
	w.poke()
	return true, ""
}

// isDuplicate tells that a request was refused because its id was seen before. Of a call that
// is resumed it's the answer to another copy of its request, never its own.
func isDuplicate(r *protocol.Response) bool {
	return r.Error != nil && r.Error.Code == protocol.CodeConflict && r.Error.Reason == protocol.ReasonDuplicate
}

func (c *calls) progress(p *protocol.Progress) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.open[p.ID]
	if w == nil || !w.wanted || w.resumed && !w.fate.follows() || w.response != nil || p.Seq <= w.seq {
		return false
	}
	w.seq = p.Seq
	if len(w.news) == maxNews {
		w.news = append(w.news[:0], w.news[1:]...)
	}
	w.news = append(w.news, *p)
	w.poke()
	return true
}

func (w *call) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the news since the last time, the response, and the fate of a resumed call, as
// far as they came.
func (c *calls) take(w *call) (news []protocol.Progress, r *protocol.Response, fate *Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news, w.news = w.news, nil
	return news, w.response, w.fate
}

// Call writes req at most once and waits for its response. protocol.ErrNotSent (in the
// chain) means that the request didn't reach the agent whole, so it did not start;
// protocol.ErrCut that the connection ended after it was written. When ctx is done, a
// request that isn't written yet is withdrawn (ErrNotSent); otherwise Call sends a cancel
// with context.Cause(ctx)'s text and goes on waiting for the response, for at most
// protocol.CancelGrace, and then returns protocol.ErrNoAnswer.
//
// With a Body or a Sink it takes a connection of version 2, and at most protocol.MaxFiles
// such calls run at once on one: another waits. The response comes once the Sink has
// consumed what the agent sent; it has an error if that wasn't whole.
func (s *Session) Call(ctx context.Context, req *protocol.Request, x Exchange) (*protocol.Response, error) {
	if x.Body != nil || x.Sink != nil {
		return s.transfer(ctx, req, x)
	}
	f, w, err := s.prepare(ctx, req, x.Progress != nil)
	if err != nil {
		return nil, err
	}
	defer s.calls.remove(req.ID)
	s.out.push(f)
	return s.await(ctx, req.ID, f, w, x)
}

// await waits for the response of a call that was pushed, or is resumed: then it returns
// without one, too, when the agent has none to send.
func (s *Session) await(ctx context.Context, id string, f *outFrame, w *call, x Exchange) (*protocol.Response, error) {
	done := ctx.Done()
	var grace, unheard <-chan time.Time
	if w.resumed {
		t := time.NewTimer(protocol.CancelGrace)
		defer t.Stop()
		unheard = t.C
	}
	for {
		select {
		case <-w.wake:
		case <-s.ctx.Done():
		case <-unheard:
			return nil, notSent(fmt.Errorf("%w about a call within %s", protocol.ErrNoAnswer, protocol.CancelGrace))
		case <-done:
			detached := errors.Is(context.Cause(ctx), ErrDetached)
			if unheard != nil && !detached {
				// A cancel that overtakes the agent's look into its journal finds nothing to
				// cancel, so the fate is waited for first.
				done = nil
				continue
			}
			if s.out.withdraw(f) {
				return nil, notSent(context.Cause(ctx))
			}
			if detached {
				s.calls.giveUp(id)
				return nil, fmt.Errorf("%w: %w", protocol.ErrCut, ErrDetached)
			}
			s.cancelCall(ctx, id)
			t := time.NewTimer(protocol.CancelGrace)
			defer t.Stop()
			done, grace = nil, t.C
			continue
		case <-grace:
			s.calls.giveUp(id)
			return nil, fmt.Errorf("%w within %s: %w", protocol.ErrNoAnswer, protocol.CancelGrace, context.Cause(ctx))
		}
		news, response, fate := s.calls.take(w)
		for _, p := range news {
			x.Progress(p)
		}
		if unheard != nil && fate != nil {
			done, unheard = ctx.Done(), nil
			if x.Fated != nil {
				x.Fated(*fate)
			}
		}
		if response != nil || fate != nil && !fate.follows() {
			return response, nil
		}
		if s.ctx.Err() != nil {
			if s.out.begun(f) {
				return nil, context.Cause(s.ctx)
			}
			return nil, notSent(s.err)
		}
	}
}

// prepare encodes and registers a call and reserves its place in the queue.
func (s *Session) prepare(ctx context.Context, req *protocol.Request, progress bool) (*outFrame, *call, error) {
	if s.cfg.Handler != nil {
		return nil, nil, notSent(errors.New("an agent makes no calls"))
	}
	if s.ctx.Err() != nil {
		return nil, nil, notSent(s.err)
	}
	if size := len(req.Args); size > protocol.MaxFrame {
		return nil, nil, notSent(protocol.Errorf(protocol.CodeTooLarge, "the arguments have %d bytes; a request may have %d", size, protocol.MaxFrame))
	}
	out := *req
	out.Type, out.Progress = protocol.TypeRequest, progress
	b, err := protocol.Encode(&out)
	if err != nil {
		return nil, nil, notSent(err)
	}
	if len(b) > protocol.MaxFrame {
		return nil, nil, notSent(protocol.Errorf(protocol.CodeTooLarge, "the request has %d bytes; the limit is %d", len(b), protocol.MaxFrame))
	}
	w, ok := s.calls.add(req.ID, progress, false)
	if !ok {
		return nil, nil, notSent(protocol.Errorf(protocol.CodeInternal, "call %s is open on this connection already", req.ID))
	}
	f := &outFrame{data: b, id: req.ID}
	if err := s.reserve(ctx, f); err != nil {
		s.calls.remove(req.ID)
		return nil, nil, notSent(err)
	}
	return f, w, nil
}

func (s *Session) cancelCall(ctx context.Context, id string) {
	s.calls.end(id)
	reason := text.Line(context.Cause(ctx).Error(), protocol.MaxLine)
	s.force(&protocol.Cancel{Type: protocol.TypeCancel, ID: id, Reason: reason})
}

func notSent(err error) error { return fmt.Errorf("%w: %w", protocol.ErrNotSent, err) }
