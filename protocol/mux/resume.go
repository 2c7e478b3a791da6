package mux

import (
	"context"
	"errors"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// errOld: the peer's version can't resume.
var errOld = errors.New("the agent's protocol version can't resume calls")

// follows tells that a response will come over this connection.
func (f *Fate) follows() bool {
	return f.State == protocol.FateRunning || f.State == protocol.FateDone
}

// Version is the protocol version that the handshake agreed on.
func (s *Session) Version() int { return s.cfg.Version }

// Boot is the agent's journal and boot as it announced them, "" if it hasn't (yet).
func (s *Session) Boot() string {
	if b := s.boot.Load(); b != nil {
		return *b
	}
	return ""
}

// Resume asks what became of a call that was sent over an earlier connection, and waits for
// its response if there will be one: a fate of running or done comes with a response or an
// error, unseen and lost without either. Nothing is executed by it. ctx and the errors
// count as in Call; protocol.ErrNotSent means that nothing was learnt.
func (s *Session) Resume(ctx context.Context, id string, x Exchange) (Fate, *protocol.Response, error) {
	if s.cfg.Version < 2 {
		return Fate{}, nil, notSent(errOld)
	}
	if s.ctx.Err() != nil {
		return Fate{}, nil, notSent(s.err)
	}
	b, err := protocol.Encode(&protocol.Resume{Type: protocol.TypeResume, IDs: []string{id}})
	if err != nil {
		return Fate{}, nil, notSent(err)
	}
	w, ok := s.calls.add(id, x.Progress != nil)
	if !ok {
		return Fate{}, nil, notSent(protocol.Errorf(protocol.CodeInternal, "call %s is open on this connection already", id))
	}
	defer s.calls.remove(id)
	s.calls.resume(w)
	f := &outFrame{data: b, id: id}
	if err := s.reserve(ctx, f); err != nil {
		return Fate{}, nil, notSent(err)
	}
	s.out.push(f)
	resp, err := s.await(ctx, id, f, w, x)
	return s.calls.fateOf(w), resp, err
}

func (c *calls) resume(w *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.resumed = true
}

func (c *calls) fateOf(w *call) Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.fate == nil {
		return Fate{}
	}
	return *w.fate
}

// fated takes an agent's answer about one call; false when nobody asked.
func (c *calls) fated(st protocol.ResumeState, boot string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.open[st.ID]
	if w == nil || !w.resumed || w.fate != nil {
		return false
	}
	st.Note = text.Line(st.Note, protocol.MaxLine)
	w.fate = &Fate{ResumeState: st, Boot: boot}
	w.poke()
	return true
}

// onFates hears, on the calling side, what an agent says of earlier calls and of itself.
func (s *Session) onFates(f *protocol.Resume) {
	for _, st := range f.States {
		switch st.State {
		case protocol.FateRunning, protocol.FateDone, protocol.FateUnseen, protocol.FateLost:
		default:
			s.violate("a call's fate that doesn't exist")
			return
		}
		if st.PID < 0 || st.AgoMS < 0 {
			s.violate("a call's fate with a negative number")
			return
		}
		if !s.calls.fated(st, f.Boot) {
			s.late.Add(1)
		}
	}
	if len(f.Boot) > protocol.MaxName {
		s.violate("a boot that is too long")
		return
	}
	if f.Boot != "" {
		s.boot.Store(&f.Boot)
	}
}

// onResume answers, on the agent's side, what became of earlier calls, in its own goroutine:
// the journal may be on a slow disk. What has ended or will end is answered like a request.
func (s *Session) onResume(f *protocol.Resume) {
	if len(f.States) > 0 {
		s.violate("a resume with states from a server")
		return
	}
	go func() {
		var out protocol.Resume
		if s.cfg.Resumer != nil {
			out = s.cfg.Resumer.Fates(f.IDs)
		} else {
			for _, id := range f.IDs {
				out.States = append(out.States, protocol.ResumeState{ID: id, State: protocol.FateUnseen})
			}
		}
		out.Type, out.IDs = protocol.TypeResume, nil
		if s.Send(s.ctx, &out) != nil || s.cfg.Version < 2 {
			return // the connection is gone, and the question with it; or nothing follows
		}
		for _, st := range out.States {
			if st.State == protocol.FateRunning || st.State == protocol.FateDone {
				s.rejoin(st.ID)
			}
		}
	}()
}

// rejoin answers a call of an earlier connection over this one, once.
func (s *Session) rejoin(id string) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	if s.work.begin(id, cancel, maxRejoined) != admitted {
		cancel(nil)
		return
	}
	go func() {
		w := &Work{reporter: reporter{s: s, id: id, wanted: true}}
		resp := s.cfg.Resumer.Rejoin(ctx, id, w)
		w.stop()
		cancel(nil)
		s.work.finish(id)
		s.answer(id, resp, 0)
	}()
}

// maxRejoined bounds the calls of earlier connections that one waits for.
const maxRejoined = 4096
