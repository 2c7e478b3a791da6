package run

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
)

// Boot names the memory that Fates answers from: see protocol.Resume. It stays the same as
// long as the runner does: what has to be forgotten is never answered unseen.
func (r *Runner) Boot() string { return r.journal.Boot() }

// Fates implements mux.Resumer. A call that it answers unseen is refused if it comes after
// all, however late.
func (r *Runner) Fates(ids []string) protocol.Resume {
	out := protocol.Resume{Type: protocol.TypeResume, Boot: r.journal.Boot()}
	for _, id := range ids {
		r.recall(id)
		st := r.fate(journal.IDOf(id))
		st.ID = id
		out.States = append(out.States, st)
	}
	return out
}

// recall has the response of a call kept whose agent ended before it could answer, if its
// tool finds it.
func (r *Runner) recall(id string) {
	k := journal.IDOf(id)
	e, written := r.journal.Find(k)
	fn := r.reg.recalls[e.Tool]
	if !written || e.State != journal.Lost || fn == nil {
		return
	}
	log := r.log.With("call", id, "tool", e.Tool)
	defer fault.Catch(func(p *fault.Panic) { // it's lost as others are
		log.Error("a fault inside was kept to one call", "panic", p.What, "stack", p.Stack)
	})
	out, ok := fn(id)
	if !ok {
		return
	}
	b, err := json.Marshal(out)
	if err != nil {
		log.Error("result can't be encoded", "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[k.Hash] == nil && r.kept.get(k) == nil {
		r.hold(k, "", &protocol.Response{Type: protocol.TypeResponse, ID: id, Result: b})
	}
}

// fate tells what became of one call. The lock that admit holds, too, is held throughout:
// a call is either taken up before, or denied after.
func (r *Runner) fate(id journal.ID) protocol.ResumeState {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, written := r.journal.Find(id)
	st := protocol.ResumeState{}
	live := r.live[id.Hash]
	if written && e.State != journal.Withdrawn && (live == nil || live.begun.Load()) {
		st.PID, st.AgoMS, st.ExitCode = e.PID, max(0, time.Since(e.Began).Milliseconds()), e.Exit
	}
	resp := r.kept.get(id)
	switch {
	case live != nil:
		st.State = protocol.FateRunning
	case resp != nil:
		st.State = protocol.FateDone
		st.Ended = true
	case written && e.State != journal.Withdrawn:
		st.State = protocol.FateLost
		st.Ended, st.Note = missed(e)
	case !written && r.journal.Forgotten(id):
		st.State = protocol.FateLost
		st.Note = fmt.Sprintf("the agent remembers its latest %d calls, and this one is older", journal.Slots)
	default:
		// It never came, or was refused before it began; from now on it never will.
		r.denied.add(id)
		st.State = protocol.FateUnseen
	}
	return st
}

// missed tells what is known of a call whose response there is no more.
func missed(e journal.Entry) (ended bool, note string) {
	if e.State == journal.Ended {
		return true, "it ended " + e.Ended.UTC().Format(time.RFC3339) + " by the host's clock; the agent doesn't have its result any more"
	}
	switch {
	case e.HostRestarted:
		return true, "the host was restarted while it ran"
	case e.State == journal.Started:
		return false, "another process of this agent began it, and isn't seen to have ended: the state folder is a copy of that one's, and the call may be going on there"
	case e.Left == 1:
		return false, "the agent was restarted while it ran; 1 process of it was found and ended"
	case e.Left > 1:
		return false, fmt.Sprintf("the agent was restarted while it ran; %d processes of it were found and ended", e.Left)
	}
	return false, "the agent was restarted while it ran; no process of it was found"
}

// Rejoin implements mux.Resumer.
func (r *Runner) Rejoin(ctx context.Context, id string, w *mux.Work) *protocol.Response {
	k := journal.IDOf(id)
	r.mu.Lock()
	f, resp := r.live[k.Hash], r.kept.get(k)
	r.mu.Unlock()
	switch {
	case resp != nil:
		return resp
	case f != nil:
		return r.wait(ctx, f, w)
	}
	e, _ := r.journal.Find(k)
	_, note := missed(e)
	return &protocol.Response{Error: protocol.Errorf(protocol.CodeOutcomeUnknown, "%s", note)}
}
