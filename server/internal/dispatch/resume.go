package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/dispatch/word"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

const (
	// resumeGrace is how long after a call's own time, or after its end was asked for, its agent
	// is still waited for: an agent that is back dials at least once a minute, and what it says
	// then is the truth, which an unknown outcome isn't. The time of a call with a file is over
	// with the connection.
	resumeGrace = 2 * time.Minute
	// lookEvery is how often a call that waits for its agent looks whether that was removed.
	lookEvery = 2 * time.Second
	// askFor is the least time that a resumed call has to answer.
	askFor = 30 * time.Second
)

// Reasons of an unknown outcome that a later word of the agent may add to.
const (
	reasonAway   = "agent_away"
	reasonSilent = "agent_silent"
)

// AgentElsewhere tells that an agent is connected to another replica: what waited for it goes
// on.
func (d *Dispatcher) AgentElsewhere(id fleet.AgentID, _ int64) { d.arrived(id) }

func (d *Dispatcher) arrived(id fleet.AgentID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch := d.arrivals[id]; ch != nil {
		close(ch)
		delete(d.arrivals, id)
	}
}

// AgentOnline tells that an agent is connected here and its journal is known: what waited for
// it goes on, and what is on record as unknown is asked for. It doesn't block.
func (d *Dispatcher) AgentOnline(id fleet.AgentID, generation int64) {
	d.arrived(id)
	d.meanwhile("asking for earlier calls", id, "", func() { d.learn(id, generation) })
}

// meanwhile does something beside calls in a goroutine of its own, unless the server stops.
func (d *Dispatcher) meanwhile(what string, agent fleet.AgentID, call fleet.CallID, do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		d.aside(what, agent, call, do)
	}()
}

// arrival is closed when the agent connects the next time. Whoever waits takes it before
// looking whether the agent is there, so that no arrival is missed.
func (d *Dispatcher) arrival(id fleet.AgentID) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := d.arrivals[id]
	if ch == nil {
		ch = make(chan struct{})
		d.arrivals[id] = ch
	}
	return ch
}

// resume sees a call to its end whose connection was cut after its frame may have been
// written. Nothing is sent again: each time the agent connects, it's asked.
func (d *Dispatcher) resume(f *flight) (*protocol.Response, error) {
	_, span := d.trace.Start(f.ctx, tracing.Internal, "resume")
	resp, err := d.askAgain(f)
	span.End()
	d.obs.Resumed(resumed(resp, err))
	return resp, err
}

// resumed sorts what came of asking for a call.
func resumed(resp *protocol.Response, err error) obs.Resumed {
	fe, _ := errors.AsType[*fleet.Error](err)
	switch {
	case err == nil && resp != nil:
		return obs.ResumeAnswered
	case errors.Is(err, errAbandoned), errors.Is(err, errElsewhere):
		return obs.ResumeLeft
	case fe != nil && fe.Code == protocol.CodeNotStarted:
		return obs.ResumeNotStarted
	default:
		return obs.ResumeUnknown
	}
}

// askAgain asks at each connection of the agent.
func (d *Dispatcher) askAgain(f *flight) (*protocol.Response, error) {
	agent := f.target.agent
	if f.target.def.Stream != capability.NoStream {
		// Its file's way is gone, and soon nobody waits for it: all there is to wait for is the
		// agent's word.
		f.deadline = time.Now()
		defer time.AfterFunc(protocol.CancelGrace, func() { f.cancel(errWayGone) }).Stop()
	}
	f.tell(fmt.Sprintf("the connection to %s was lost; waiting for the agent to come back", agent.ID))
	wait := max(0, time.Until(f.deadline)) + resumeGrace
	if d.resumeWait > 0 {
		wait = min(wait, d.resumeWait)
	}
	p := newPatience(f, wait)
	defer p.stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	cancelled := f.ctx.Done()
	var asked Caller
	back := false // it was connected again, and asked
	for {
		arrived := d.arrival(agent.ID)
		if cancelled != nil && f.ctx.Err() != nil {
			cancelled = nil
			d.cancelledAway(f)
			p.cancelled(d.cancelWait)
		}
		caller, here := d.router.Route(agent.ID, agent.Generation)
		if here && caller != asked && (!back || time.Now().Before(p.until)) {
			back = true
			asked = caller
			if resp, err, settled := d.ask(f, caller); settled {
				return resp, err
			}
			continue
		}
		select {
		case <-arrived:
		case <-look.C:
			if d.moved(agent) {
				return nil, f.unknown("removed", "agent %s was removed, or given a new key, while its connection was lost", agent.ID)
			}
			asked = nil // one that is connected and didn't answer is asked again
		case <-cancelled: // seen to above
		case <-p.end.C:
			if back {
				return nil, f.unknown(reasonSilent, "%s; the agent was connected again, but did not say within %s what became of it", f.brokeOff(), p.within)
			}
			return nil, f.unknown(reasonAway, "%s, and the agent did not come back within %s", f.brokeOff(), p.within)
		case <-d.closing:
			return nil, errAbandoned
		}
	}
}

// cancelledAway notes the end of a call whose agent can't be told now.
func (d *Dispatcher) cancelledAway(f *flight) {
	if errors.Is(context.Cause(f.ctx), errGone) { // nobody is left to cancel it again
		go d.request(f.who, f.id)
	}
	f.tell(fmt.Sprintf("%s; %s is told as soon as it's back", context.Cause(f.ctx), f.target.agent.ID))
}

// patience is how long the agent of a call is waited for.
type patience struct {
	end    *time.Timer
	until  time.Time // it ends
	within string    // the same, to be told
	asked  atomic.Int64
	stop   func()
}

func newPatience(f *flight, wait time.Duration) *patience {
	p := &patience{end: time.NewTimer(wait), until: time.Now().Add(wait), within: wait.Round(time.Second).String()}
	// While the agent is asked, which may take a while, nobody else notices the cancel.
	unwatch := context.AfterFunc(f.ctx, func() { p.asked.Store(time.Now().UnixNano()) })
	p.stop = func() { unwatch(); p.end.Stop() }
	return p
}

// cancelled bounds it after the call's cancel.
func (p *patience) cancelled(wait time.Duration) {
	since := time.Now()
	if at := p.asked.Load(); at != 0 {
		since = time.Unix(0, at)
	}
	if soon := since.Add(wait); soon.Before(p.until) {
		p.until, p.within = soon, wait.Round(time.Second).String()+" of the call's cancel"
		p.end.Reset(time.Until(soon))
	}
}

// moved tells that an agent isn't the one any more that a call was for.
func (d *Dispatcher) moved(agent *fleet.Agent) bool {
	now := d.db.Snapshot().Agents[agent.ID]
	return now == nil || now.Generation != agent.Generation
}

// ask asks a connected agent what became of a call, and waits for its response if there will
// be one. settled is false when nothing was learnt that ends it.
func (d *Dispatcher) ask(f *flight, caller Caller) (resp *protocol.Response, err error, settled bool) {
	if caller.Version() < 2 {
		return nil, f.unknown("agent_old", "%s, and its agent is too old to tell what became of it; update the agent", f.brokeOff()), true
	}
	end := f.deadline
	if least := time.Now().Add(askFor); end.Before(least) {
		end = least
	}
	ctx, stop := context.WithDeadlineCause(f.ctx, end, errDeadline)
	defer stop()
	fate, resp, err := caller.Resume(ctx, string(f.id), mux.Exchange{Progress: f.news})
	f.late = f.late || errors.Is(context.Cause(ctx), errDeadline)
	if fate.State != "" {
		f.fate = fate
	}
	switch {
	case err == nil && resp != nil:
		return resp, nil, true
	case err == nil:
		return nil, f.fated(fate), true
	case errors.Is(err, protocol.ErrNotSent), errors.Is(err, protocol.ErrCut):
		return nil, nil, false
	default:
		return nil, err, true
	}
}

// fated turns an agent's word, where no response follows, into the call's end. That it
// wasn't seen proves that it never began only under the journal and boot of its sending.
func (f *flight) fated(fate mux.Fate) error {
	if bad := f.said(nil).Contradiction(); bad != "" {
		return f.unknown("contradiction", "agent %s contradicts itself (%s)", f.target.agent.ID, bad)
	}
	id := f.target.agent.ID
	switch {
	case fate.State == protocol.FateUnseen && f.boot != "" && fate.Boot == f.boot:
		return fleet.Errorf(protocol.CodeNotStarted, "the connection to %s ended before the agent began this; nothing ran; it's safe to call again", id)
	case fate.State == protocol.FateUnseen:
		return f.unknown("journal_gone", "%s, and the agent's journal doesn't prove that it never began", f.brokeOff())
	default:
		return f.unknown("agent_restarted", "the connection to %s ended while this ran, and the agent has no result of it", id)
	}
}

// brokeOff says what is known of a request whose connection, or server, is gone. A server that
// ends between the intent and the sending leaves no word of whether it was sent.
func (f *flight) brokeOff() string {
	if f.adopted && !f.queued() {
		return fmt.Sprintf("the server that had this call for %s ended, perhaps before the request was sent", f.target.agent.ID)
	}
	return fmt.Sprintf("the connection to %s ended after the request was sent", f.target.agent.ID)
}

// unknown is an outcome_unknown with what is known.
func (f *flight) unknown(reason, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...) + ": it may have run, run in part, or not at all"
	if f.fate.State != "" && f.fate.State != protocol.FateUnseen && reason != "contradiction" {
		msg = fmt.Sprintf(format, args...) + ": " + word.EvidenceOf(f.id, f.fate, nil)
	}
	err := fleet.Errorf(protocol.CodeOutcomeUnknown, "%s. Check on the host before calling again", msg)
	err.Reason = reason
	return err
}
