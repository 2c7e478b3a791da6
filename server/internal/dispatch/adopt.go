package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/dispatch/word"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// Adopt takes over the open calls that belong to nobody: an earlier process of this server
// left them, or a replica that has stopped or died. Queued ones go on waiting for their agent,
// sent ones are asked for. It returns how many there were.
func (d *Dispatcher) Adopt(ctx context.Context) (int, error) {
	calls, err := d.db.OpenCalls(ctx)
	if err != nil || len(calls) == 0 {
		return 0, err
	}
	ids := map[fleet.State][]fleet.CallID{}
	for _, c := range calls {
		// What this replica had before it was taken for dead ends here first, or is seen to its end.
		if d.find(c.ID) == nil {
			ids[c.State] = append(ids[c.State], c.ID)
		}
	}
	var mine []fleet.CallID
	for state, some := range ids {
		got, err := d.db.Adopt(ctx, state, some...)
		if err != nil {
			return 0, err
		}
		mine = append(mine, got...)
	}
	for i := range calls {
		if slices.Contains(mine, calls[i].ID) {
			d.adopt(&calls[i])
		}
	}
	d.obs.Adopted(len(mine))
	return len(mine), nil
}

func (d *Dispatcher) adopt(c *store.OpenCall) {
	who, alive := d.callerOf(&c.Call)
	if !alive {
		who = fleet.Principal{ID: c.Principal, Name: c.Name}
	}
	f := newFlight(d.oldTarget(c), fleet.Intent{
		CallID: c.ID, Principal: who, Client: c.Client, Edge: c.Edge, Agent: c.Agent, At: c.CreatedAt, QueueUntil: c.QueueUntil, Boot: c.Boot,
	})
	f.exchange = mux.Exchange{Progress: f.news}
	f.adopted, f.deadline, f.instance = true, c.Deadline, d.db.Instance()
	ctx, span := d.trace.Start(f.ctx, tracing.Internal, "call") // the trace that it began in isn't kept
	span.Set(attrAdopted, "true")
	f.traced(ctx)
	f.hold() // nobody's dropping out ends it
	way := d.deliver
	if c.State != fleet.Queued {
		f.sent, f.marked, f.cut = true, true, true
		f.file = sendsFile(f.target.def, c.Args)
		if f.queued() && d.defs[c.Tool] != nil { // its row has the time until which it might have waited
			_, limit := timeouts(f.target.def, c.Args)
			f.deadline = time.Now().Add(limit + 5*time.Second)
		}
		f.become(fleet.Dispatched)
		way = d.resume
	}
	if c.State == fleet.Queued && len(c.Frozen) == 0 {
		way = func(*flight) (*protocol.Response, error) { return nil, unreadable(c) }
	} else if d.defs[c.Tool] == nil {
		way = func(f *flight) (*protocol.Response, error) {
			return nil, f.unknown("tool_gone", "this server was updated and no longer has the tool %s", c.Tool)
		}
	}
	switch {
	case !alive:
		f.cancel(errRevoked)
	case !c.CancelAt.IsZero(): // its agent is told when it's back
		f.asked(c.CancelAt, c.CancelBy)
		f.cancel(errAsked)
	}
	d.mu.Lock()
	d.open[f.id] = f
	d.own[who.ID]++
	if f.queued() {
		d.queued[c.Agent]++
		d.owners[queueOwner{c.Agent, who.ID}]++
	}
	d.keep(f.who.ID, int64(len(f.target.args)))
	d.wg.Add(1)
	d.mu.Unlock()
	go d.fly(f, way)
}

// callerOf is who made an earlier call, if that still counts. What the server began itself it
// was allowed for that one call: its grant is written nowhere else.
func (d *Dispatcher) callerOf(c *fleet.Call) (who fleet.Principal, alive bool) {
	if who, alive = d.principal(c.Principal); alive && who.Kind == fleet.KindSystem {
		who.Grant = fleet.Only(c.Agent, c.Tool)
	}
	return who, alive
}

// unreadable is the end of a queued call whose arguments aren't there any more, or can't be read.
func unreadable(c *store.OpenCall) error {
	reason, why := "args_lost", "aren't in the database any more"
	if c.Foreign {
		reason, why = "args_sealed", "can't be read, since they were sealed when the server had another key"
	}
	return &fleet.Error{Code: protocol.CodeNotStarted, Reason: reason, Message: fmt.Sprintf("the arguments of this queued call %s: it was not sent to %s and nothing ran; call again", why, c.Agent)}
}

// oldTarget is what an open call was for. An agent or a tool that is gone is only named.
func (d *Dispatcher) oldTarget(c *store.OpenCall) *target {
	t := &target{agent: d.db.Snapshot().Agents[c.Agent], def: d.defs[c.Tool], args: c.Frozen}
	if t.agent == nil || t.agent.Generation != c.Generation {
		t.agent = &fleet.Agent{ID: c.Agent, Generation: c.Generation}
	}
	if t.def == nil {
		t.def = &capability.Definition{Spec: capability.Spec{Name: c.Tool}}
	}
	if len(t.args) > 0 && d.defs[c.Tool] != nil {
		t.timeout, t.limit = timeouts(t.def, t.args)
	}
	return t
}

// What is asked of an agent about calls whose outcome is on record as unknown.
const (
	learnBack   = 24 * time.Hour
	learnMost   = 64
	learnAtMost = 10 * time.Minute // for calls that still run
)

// learn asks an agent that has come back for calls of the last day whose outcome is unknown,
// and records what it says as evidence beside it.
func (d *Dispatcher) learn(id fleet.AgentID, generation int64) {
	ctx, leave := d.learning()
	defer leave()
	ids, err := d.db.Unsettled(ctx, id, generation, time.Now().Add(-learnBack), learnMost)
	if err != nil {
		d.log.Warn("calls with an unknown outcome could not be looked for", "agent", id, "err", err)
		return
	}
	var all sync.WaitGroup
	for _, call := range ids { // at once: one that still runs mustn't hold up the others
		all.Go(func() {
			d.aside("asking for an earlier call", id, call, func() { d.learnOne(ctx, id, generation, call) })
		})
	}
	all.Wait()
}

// learning is the time for it. Its end cancels nothing on a host.
func (d *Dispatcher) learning() (ctx context.Context, leave func()) {
	ctx, end := context.WithCancelCause(context.Background())
	late := time.AfterFunc(learnAtMost, func() { end(mux.ErrDetached) })
	go func() {
		select {
		case <-d.closing:
			end(mux.ErrDetached)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { late.Stop(); end(nil) }
}

// learnOne asks for one call, and has it ended where nobody wants it any more. known tells that
// the agent has said what became of it.
func (d *Dispatcher) learnOne(ctx context.Context, id fleet.AgentID, generation int64, call fleet.CallID) (known bool) {
	caller, ok := d.router.Route(id, generation)
	if !ok || caller.Version() < 2 || !d.settle(call) {
		return false
	}
	defer d.settled(call)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	why := d.unwanted(ctx, call)
	fate, resp, err := caller.Resume(ctx, string(call), mux.Exchange{Fated: func(mux.Fate) {
		if why != nil {
			end(why)
		}
	}})
	if fate.State == "" || errors.Is(err, protocol.ErrCut) {
		return false // asked again at the next connection
	}
	e := fleet.Evidence{CallID: call, Text: text.Line(word.EvidenceOf(call, fate, resp), 500), At: time.Now()}
	if err := d.db.RecordEvidence(context.WithoutCancel(ctx), e); err != nil && !errors.Is(err, store.ErrAlreadyFinal) {
		d.log.Warn("evidence of a call was not recorded", "call", call, "err", err)
		return true
	}
	d.log.Info("learnt of a call whose outcome is unknown", "agent", id, "call", call, "evidence", e.Text)
	return true
}

// unwanted tells why a call whose outcome is unknown shall not go on, should it still: its end
// was asked for while its agent was away, or the right to it is gone.
func (d *Dispatcher) unwanted(ctx context.Context, id fleet.CallID) error {
	call, err := d.db.Call(ctx, id)
	if err != nil {
		return nil // asked again at the next connection, if it goes on
	}
	if !call.CancelAt.IsZero() {
		return errAsked
	}
	who, alive := d.callerOf(call)
	if def := d.defs[call.Tool]; !alive || def != nil && authz.Decide(who, def, d.db.Snapshot().Agents[call.Agent]) != "" {
		return errRevoked
	}
	return nil
}

// pursue asks for a call that was given up after its cancel: its agent may have come back in that
// very moment, or be there and have been silent. For one that comes later learn does it.
func (d *Dispatcher) pursue(f *flight) {
	ctx, leave := d.learning()
	defer leave()
	late := time.NewTimer(askFor)
	defer late.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
		if d.learnOne(ctx, f.target.agent.ID, f.target.agent.Generation, f.id) {
			return
		}
	}
}

// settle lets one ask for a call at a time.
func (d *Dispatcher) settle(call fleet.CallID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settling[call] || d.open[call] != nil {
		return false
	}
	d.settling[call] = true
	return true
}

func (d *Dispatcher) settled(call fleet.CallID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.settling, call)
}
