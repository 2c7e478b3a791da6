package dispatch

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

var (
	// errAbandoned: the server stops, and the call is left to its next process, or another replica.
	errAbandoned = errors.New("left to the next start, or to another replica")
	// errClosing: the server stops before the call was sent.
	errClosing = errors.New("the server stops")
	// errElsewhere: the record has the call's end already.
	errElsewhere = errors.New("the record has its end, or another replica has it")
)

// way is how a call comes to its end: by its response, or an error.
type way func(*flight) (*protocol.Response, error)

// fly brings a call to its end: way is deliver, or recover for one of an earlier process.
// Then comes step 8: the outcome, durable; then the answer may go out.
func (d *Dispatcher) fly(f *flight, way way) {
	defer f.cancel(nil)
	var resp *protocol.Response
	var err error
	if d.contained(f, func() { resp, err = way(f) }) {
		resp, err = nil, f.broken()
	}
	f.exchangeOver()
	if d.contained(f, func() { d.land(f, resp, err) }) {
		f.result = f.standing() // it's open on record, and the next process asks for it
	}
	d.contained(f, f.landed)
	// What counts calls isn't contained: it's all calls', and one that it forgot would never end.
	d.exit(f.intent(), int64(len(f.target.args)), f)
	close(f.done)
}

// land finds the call's result.
func (d *Dispatcher) land(f *flight, resp *protocol.Response, err error) {
	// A queued call may be sent by whoever took it over. Any other that wasn't sent never is, so
	// its end is known here; if its new owner, who asks the agent, recorded one first, that counts.
	if !f.sent && f.queued() && d.stale(f) {
		err = errElsewhere
	}
	switch {
	case errors.Is(err, errAbandoned):
		f.result = f.standing()
	case errors.Is(err, errElsewhere):
		f.result = d.recorded(f)
	default:
		d.finish(f, resp, err)
	}
}

func (d *Dispatcher) finish(f *flight, resp *protocol.Response, err error) {
	var out fleet.Outcome
	if d.contained(f, func() { out = d.outcome(f, resp, err); f.judge(&out) }) {
		out = d.outcome(f, nil, f.broken())
	}
	f.result = f.standing()
	d.obs.Call(f.edge, f.target.def.Name, string(out.State), out.At.Sub(f.created))
	if !d.record(f, &out) {
		f.result = d.recorded(f)
		return
	}
	if f.ctx.Err() != nil && (out.Reason == reasonAway || out.Reason == reasonSilent) {
		d.meanwhile("asking for a cancelled call", f.target.agent.ID, f.id, func() { d.pursue(f) })
	}
	f.result.State, f.result.Output, f.result.FinishedAt = out.State, out.Result, out.At
	f.result.Err = errorOf(out.Code, out.Reason, out.Message)
}

// deliver does steps 6 and 7: wait for the agent if the call is queued, for a place on it,
// send, and see the call to its end across cuts.
func (d *Dispatcher) deliver(f *flight) (*protocol.Response, error) {
	whole := f.exchange.Body == nil && f.exchange.Sink == nil // what streams has its ends once
	for again := false; ; again = true {
		if f.queued() {
			if err := d.awaitAgent(f); err != nil {
				return nil, err
			}
		}
		_, span := d.trace.Start(f.ctx, tracing.Internal, "wait for a place")
		release, err := d.lanes.enter(f.ctx, d.closing, f.target.agent.ID, f.who.ID)
		span.End()
		if err != nil {
			return nil, f.unsent(err)
		}
		began := time.Now()
		resp, err := d.placed(f, release)
		if f.ctx.Err() != nil || !f.passing(err) || !f.queued() && (again || !whole || !d.newer(f, began)) {
			return resp, err
		}
		// A queued call waits on when its agent, or the database, went away before the frame
		// was written. Any other goes to the agent's newer connection, if there's one.
		f.sent = false
		if f.queued() {
			f.become(fleet.Queued)
			pause(f.ctx, queuedPause)
		}
	}
}

// placed makes the call once it has its place, which release gives back.
func (d *Dispatcher) placed(f *flight, release func()) (*protocol.Response, error) {
	defer release()
	resp, err := d.attempt(f)
	if errors.Is(err, protocol.ErrCut) {
		return d.resume(f)
	}
	return resp, err
}

// newerWait is how long the news of a newer connection may take, from another replica too. A
// call that was tried for longer isn't what its caller wants now.
const newerWait = time.Second

// newer waits for another connection than the one that a call met the end of. Where there was
// none when the call was made it fails at once.
func (d *Dispatcher) newer(f *flight, since time.Time) bool {
	if f.boot == "" {
		return false
	}
	late := time.NewTimer(newerWait - time.Since(since))
	defer late.Stop()
	for time.Since(since) < newerWait {
		arrived := d.arrival(f.target.agent.ID)
		if caller, ok := d.router.Route(f.target.agent.ID, f.target.agent.Generation); ok && caller != f.via {
			f.moved = true // decided anew
			return true
		}
		select {
		case <-arrived:
		case <-late.C:
		case <-f.ctx.Done():
			return false
		case <-d.closing:
			return false
		}
	}
	return false
}

// queuedPause is the time between two tries of a queued call.
const queuedPause = time.Second

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// passing tells that nothing was sent for a reason that passes.
func (f *flight) passing(err error) bool {
	if errors.Is(err, protocol.ErrNotSent) {
		return true
	}
	fe, ok := errors.AsType[*fleet.Error](err)
	return ok && !f.sent && (fe.Code == protocol.CodeOffline || fe.Code == protocol.CodeUnavailable)
}

// unsent words why a call was given up before it was sent.
func (f *flight) unsent(err error) error {
	switch {
	case !errors.Is(err, errClosing):
		return errors.Join(protocol.ErrNotSent, err)
	case f.queued() && !f.marked:
		return errAbandoned
	default:
		return fleet.Errorf(protocol.CodeNotStarted, "the server was stopped before this was sent to %s; nothing ran; call again", f.target.agent.ID)
	}
}

// awaitAgent waits until a queued call's agent is online.
func (d *Dispatcher) awaitAgent(f *flight) error {
	_, span := d.trace.Start(f.ctx, tracing.Internal, "queue wait")
	defer span.End()
	agent := f.target.agent
	expiry := time.NewTimer(time.Until(f.until))
	defer expiry.Stop()
	for {
		arrived := d.arrival(agent.ID)
		if d.stale(f) {
			return errElsewhere
		}
		if !time.Now().Before(f.until) {
			return f.expired()
		}
		if _, ok := d.router.Route(agent.ID, agent.Generation); ok {
			return nil
		}
		select {
		case <-arrived:
		case <-expiry.C:
		case <-f.ctx.Done():
			return errors.Join(protocol.ErrNotSent, context.Cause(f.ctx))
		case <-d.closing:
			return f.unsent(errClosing)
		}
	}
}

func (f *flight) expired() error {
	return fleet.Errorf(protocol.CodeExpired, "agent %s was not online in time: the call could wait until %s and was not sent; nothing ran", f.target.agent.ID, f.latest.UTC().Format(time.RFC3339))
}

// attempt routes the call and makes it. Its error, where there's no response, is a
// *fleet.Error, or one of the tunnel's.
func (d *Dispatcher) attempt(f *flight) (*protocol.Response, error) {
	t := f.target
	if f.moved || f.queued() {
		if err := d.again(f); err != nil {
			return nil, err
		}
	}
	caller, ok := d.route(f.ctx, t.agent)
	if !ok {
		return nil, d.offline(d.db.Snapshot(), t.agent, f.edge)
	}
	if err := d.heard(f.ctx, t, f.edge); err != nil {
		return nil, err
	}
	frame := &protocol.Request{
		Type: protocol.TypeRequest, ID: string(f.id), Tool: t.def.Name, Args: t.args,
		Seal:       protocol.B64(protocol.Seal(t.agent.Fingerprint, t.agent.Generation, string(f.id), t.def.Name, t.args)),
		Caller:     f.who.Caller(text.Line(f.client, protocol.MaxName)),
		DeadlineMS: t.limit.Milliseconds(),
	}
	stale := d.stale(f)
	if stale && f.queued() {
		return nil, errElsewhere
	}
	if stale || d.isFenced() {
		return nil, fleet.Errorf(protocol.CodeUnavailable, "this server was out of touch with its database or with other replicas; nothing was sent; call again")
	}
	if f.queued() {
		if err := d.mark(f, caller.Boot()); err != nil {
			return nil, err
		}
		if frame.NotAfterMS = time.Until(f.until).Milliseconds(); frame.NotAfterMS <= 0 {
			return nil, f.expired()
		}
	} else if !f.latest.IsZero() { // the agent may be frozen, and look as if it were there
		if frame.NotAfterMS = time.Until(f.latest).Milliseconds(); frame.NotAfterMS <= 0 {
			return nil, f.expired()
		}
	}
	f.become(fleet.Dispatched)
	f.sent, f.via, f.boot = true, caller, caller.Boot()
	// The agent keeps the deadline; this one is for an agent that doesn't.
	f.sentAt = time.Now()
	f.deadline = f.sentAt.Add(t.limit + 5*time.Second)
	ctx, stop := context.WithDeadlineCause(f.ctx, f.deadline, errDeadline)
	defer stop()
	resp, err := d.send(ctx, caller, frame, f.exchange)
	f.late = errors.Is(context.Cause(ctx), errDeadline)
	f.cut = errors.Is(err, protocol.ErrCut)
	f.boot = cmp.Or(f.boot, caller.Boot()) // the way to another replica may be gone, and its name with it
	f.exchangeOver()
	return resp, err
}

// send writes the request to an agent here, or on its way to one that is elsewhere.
func (d *Dispatcher) send(ctx context.Context, caller Caller, frame *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	ctx, span := d.tunnelled(ctx, caller)
	defer span.End()
	if trace := tracing.Of(ctx).Traceparent(); trace != "" && caller.Version() >= 3 {
		frame.Traceparent = trace
	}
	if caller.Version() < 3 {
		frame.Caller.Admin = false // unknown to it
	}
	_, remote := caller.(Remote)
	d.obs.Routed(remote)
	began := time.Now()
	resp, err := caller.Call(ctx, frame, x)
	if remote && err == nil {
		d.obs.Hop(time.Since(began) - time.Duration(resp.TookUS)*time.Microsecond)
	}
	if err != nil {
		span.Fail("no_response")
	} else {
		span.SetInt(attrTook, resp.TookUS)
	}
	return resp, err
}

// exchangeOver gives the caller its ends of the exchange back.
func (f *flight) exchangeOver() {
	select {
	case <-f.exchanged:
	default:
		close(f.exchanged)
	}
	f.exchange.Body, f.exchange.Sink, f.exchange.Interrupt = nil, nil, nil
}

// mark makes durable that a queued call is being sent: a server that ends now won't send it
// again.
func (d *Dispatcher) mark(f *flight, boot string) error {
	if f.marked {
		return nil
	}
	if f.mark == "" {
		f.mark = store.NewMark() // one for all tries: an earlier one's answer may be lost
	}
	err := d.db.MarkSent(f.ctx, f.id, boot, f.mark)
	f.marked = err == nil
	if errors.Is(err, store.ErrAlreadyFinal) {
		return errElsewhere
	}
	return err
}

// again decides anew what was decided a while ago: what was revoked since doesn't start.
func (d *Dispatcher) again(f *flight) error {
	if err := d.db.Refresh(f.ctx); err != nil {
		return fleet.Wrap(protocol.CodeUnavailable, err, "the policy could not be read; nothing was started")
	}
	snap, t := d.db.Snapshot(), f.target
	agent := snap.Agents[t.agent.ID]
	if authz.Decide(f.who, t.def, agent) != "" {
		return unknownAgent(snap, f.who, string(t.agent.ID), f.edge)
	}
	if agent.Generation != t.agent.Generation {
		return fleet.Errorf(protocol.CodeNotStarted, "agent %s was given a new key meanwhile; what was meant for the old one isn't sent; call again", agent.ID)
	}
	if !d.alive(f.who.ID) {
		return fleet.Errorf(protocol.CodeUnauthenticated, "the token was revoked; nothing was started")
	}
	return nil
}
