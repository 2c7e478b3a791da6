package mux

import (
	"context"
	"errors"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
)

// errOld: the peer's version can't resume.
var errOld = errors.New("the agent's protocol version can't resume calls")

// follows tells that a response will come over this connection; not before the fate is known.
func (f *Fate) follows() bool {
	return f != nil && (f.State == protocol.FateRunning || f.State == protocol.FateDone)
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
	w, ok := s.calls.add(id, x.Progress != nil, true)
	if !ok {
		return Fate{}, nil, notSent(protocol.Errorf(protocol.CodeInternal, "call %s is open on this connection already", id))
	}
	defer s.calls.remove(id)
	f := &outFrame{data: b, id: id}
	if err := s.reserve(ctx, f); err != nil {
		return Fate{}, nil, notSent(err)
	}
	s.out.push(f)
	resp, err := s.await(ctx, id, f, w, x)
	return s.calls.fateOf(w), resp, err
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

// onFates hears, on the calling side, what an agent says of earlier calls and of itself;
// false when it breaks the protocol.
func (s *Session) onFates(f *protocol.Resume) bool {
	bad := badBoot(f.Boot)
	if bad == "" && s.cfg.Version < 2 && len(f.States) == 0 {
		bad = "a journal's name unasked, which version 1 doesn't have"
	}
	for i := range f.States {
		if bad == "" {
			bad = badFate(&f.States[i], s.cfg.Version)
		}
	}
	if bad != "" {
		s.violate("%s", bad)
		return false
	}
	if f.Boot != "" {
		s.boot.Store(&f.Boot)
	}
	for _, st := range f.States {
		if !s.calls.fated(st, f.Boot) {
			s.late.Add(1)
		}
	}
	return true
}

// badBoot: it's compared and kept, so it has to look like a name.
func badBoot(boot string) string {
	if len(boot) > protocol.MaxName {
		return "a boot that is too long"
	}
	for i := range len(boot) {
		if boot[i] <= ' ' || boot[i] > '~' {
			return "a boot that isn't printable ASCII"
		}
	}
	return ""
}

func badFate(st *protocol.ResumeState, version int) string {
	switch st.State {
	case protocol.FateRunning, protocol.FateDone, protocol.FateUnseen, protocol.FateLost:
	default:
		return "a call's fate that doesn't exist"
	}
	switch {
	case version < 2 && *st != (protocol.ResumeState{ID: st.ID, State: st.State}), version < 2 && st.State == protocol.FateLost:
		return "a call's fate with what version 1 doesn't have"
	case st.PID < 0 || st.AgoMS < 0:
		return "a call's fate with a negative number"
	}
	return ""
}

// onResume answers, on the agent's side, what became of earlier calls, in its own goroutine:
// the journal may be on a slow disk. What has ended or will end is answered like a request,
// after its fate; a cancel counts from now on.
func (s *Session) onResume(f *protocol.Resume) {
	if len(f.States) > 0 {
		s.violate("a resume with states from a server")
		return
	}
	mine := map[string]*Work{}
	if s.cfg.Version >= 2 {
		for _, id := range f.IDs {
			s.expect(id, mine)
		}
	}
	go s.tellFates(f.IDs, mine)
}

// expect makes ready for the answer of a call, unless that's under way already.
func (s *Session) expect(id string, mine map[string]*Work) {
	w := s.newWork(id, true)
	w.resumed = true
	if s.work.rejoin(w) {
		mine[id] = w
	} else {
		w.end()
	}
}

func (s *Session) tellFates(ids []string, mine map[string]*Work) {
	defer fault.Catch(s.caught())
	out := s.fates(ids)
	for _, st := range out.States {
		// Before it's told: what comes for it then is late, and not a call that's answered already.
		if w := mine[st.ID]; w != nil && !answered(st) {
			s.forget(w)
			delete(mine, st.ID)
		}
	}
	told := len(out.States) > 0 && s.sendWhole(&out) && s.cfg.Version >= 2 // in version 1 nothing follows
	for _, st := range out.States {
		if !told || !answered(st) {
			continue
		}
		// One whose answer was under way may have been answered before its fate was told:
		// then nobody has heard it.
		if mine[st.ID] == nil {
			s.expect(st.ID, mine)
		}
		if w := mine[st.ID]; w != nil {
			mine[st.ID] = nil
			go s.rejoin(w)
		}
	}
	for _, w := range mine {
		if w != nil {
			s.forget(w)
		}
	}
}

// answered tells that a call's response follows its fate.
func answered(st protocol.ResumeState) bool {
	return st.State == protocol.FateRunning || st.State == protocol.FateDone
}

func (s *Session) forget(w *Work) {
	w.end()
	s.work.finish(w, false)
}

// fates asks the Resumer. Version 1 knows neither lost nor evidence: there, what began and
// won't end any more is done, since only unseen says that it never began.
func (s *Session) fates(ids []string) (out protocol.Resume) {
	if s.cfg.Resumer != nil {
		out = s.askFates(ids)
	} else {
		for _, id := range ids {
			out.States = append(out.States, protocol.ResumeState{ID: id, State: protocol.FateUnseen})
		}
	}
	out.Type, out.IDs = protocol.TypeResume, nil
	if s.cfg.Version < 2 {
		for i, st := range out.States {
			out.States[i] = protocol.ResumeState{ID: st.ID, State: st.State}
			if st.State == protocol.FateLost {
				out.States[i].State = protocol.FateDone
			}
		}
	}
	return out
}

// askFates asks the Resumer. After a panic there it says nothing of them: they're asked for
// again, and what goes on over this connection isn't touched.
func (s *Session) askFates(ids []string) (out protocol.Resume) {
	of := ""
	if len(ids) == 1 { // so it is from a server
		of = ids[0]
	}
	defer fault.Catch(s.caughtIn(of, func(*fault.Panic) { out = protocol.Resume{} }))
	return s.cfg.Resumer.Fates(ids)
}

// sendWhole is Send that waits until the frame was written: a long one is overtaken by short
// ones otherwise.
func (s *Session) sendWhole(frame any) bool {
	b, err := protocol.Encode(frame)
	if err != nil || len(b) > protocol.MaxFrame {
		s.end(errors.New("the fates of calls can't be told"), protocol.CloseNormal, "internal error")
		return false
	}
	return s.pushWhole(&outFrame{data: b})
}

// pushWhole queues a frame and waits until it was written; false when the connection ended
// before.
func (s *Session) pushWhole(f *outFrame) bool {
	written := make(chan struct{})
	f.after = func() { close(written) }
	if s.reserve(s.ctx, f) != nil {
		return false
	}
	s.out.push(f)
	select {
	case <-written:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// rejoin answers a call of an earlier connection over this one.
func (s *Session) rejoin(w *Work) {
	defer fault.Catch(s.caught())
	defer w.answered()
	resp := s.execute(w.id, func() *protocol.Response { return s.cfg.Resumer.Rejoin(w.ctx, w.id, w) })
	w.stop()
	w.end()
	s.work.finish(w, true)
	s.answer(w, resp, 0)
}
