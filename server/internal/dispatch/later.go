package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/limit"
)

// Result tells how a call ended, or where it stands after at most wait. Callers see their
// own calls, administrators all; anything else is not_found.
func (d *Dispatcher) Result(ctx context.Context, who fleet.Principal, id fleet.CallID, wait time.Duration) (Result, error) {
	call, err := d.mine(ctx, who, id)
	if err != nil {
		return Result{}, err
	}
	f := d.find(id)
	if f == nil && call.State.Final() {
		return d.resultOf(call, false), nil
	}
	if wait > 0 {
		leave, err := d.mayWait(who)
		if err != nil {
			return Result{}, err
		}
		defer leave()
	}
	if f == nil {
		return d.elsewhere(ctx, id, wait)
	}
	if f.asked(call.CancelAt, call.CancelBy); wait > 0 {
		return d.await(ctx, f, Request{Wait: wait})
	}
	return f.standing(), nil
}

// Commitments tells what the record commits to of a call, to those who may ask for its result.
func (d *Dispatcher) Commitments(ctx context.Context, who fleet.Principal, id fleet.CallID) (commit.Commitments, error) {
	call, err := d.mine(ctx, who, id)
	if err != nil {
		return commit.Commitments{}, err
	}
	return commit.Show(call, call.Principal == who.ID), nil
}

// AtOnce is a wait for nothing that isn't there already: its caller hears where the call stands.
const AtOnce = time.Nanosecond

// mayWait counts in a request that waits for a call which another request has made (that one
// counts as the call itself), or for the agent of a call that isn't counted in yet. leave must
// be called, also after an error.
func (d *Dispatcher) mayWait(who fleet.Principal) (leave func(), err error) {
	switch err := d.waits.Take(who.ID, 1); {
	case errors.Is(err, limit.ErrOwn):
		return func() {}, fleet.Limited("principal_waits", "%d requests of this credential wait for calls already, the most that may; the call goes on; ask without wait_seconds, or with 0, or when some were answered", ownWaits)
	case err != nil:
		return func() {}, fleet.Limited("waits", "%d requests wait for calls already, the most that may; the call goes on; ask without wait_seconds, or with 0, or in a moment", maxWaits)
	}
	return func() { d.waits.Give(who.ID, 1) }, nil
}

// Waits is how many requests wait without a call of their own being open.
func (d *Dispatcher) Waits() int64 { return d.waits.Held() }

// How often a call that another replica has under way is looked at.
const (
	lookFirst = 20 * time.Millisecond
	lookLast  = time.Second
)

// elsewhere waits for the end of a call that isn't under way here: another replica has it, or
// it ended between two looks. Where it's taken over by this one it's waited for here.
func (d *Dispatcher) elsewhere(ctx context.Context, id fleet.CallID, wait time.Duration) (Result, error) {
	end := time.Now().Add(wait)
	for pace := lookFirst; ; pace = min(2*pace, lookLast) {
		call, err := d.db.Call(ctx, id)
		if err != nil {
			return Result{}, err
		}
		left := time.Until(end)
		if call.State.Final() || left <= 0 {
			return d.resultOf(call, false), nil
		}
		if f := d.find(id); f != nil {
			return d.await(ctx, f, Request{Wait: left})
		}
		pause(ctx, min(pace, left))
		if ctx.Err() != nil {
			return d.resultOf(call, false), context.Cause(ctx)
		}
	}
}

// Disown tells that another server has taken over the open calls of this one: what it hasn't
// sent yet isn't its to send any more.
func (d *Dispatcher) Disown() {
	d.disowned.Store(true)
	d.Renewed()
}

// Renewed tells that this replica, which was taken for dead, goes on under another name. What was
// queued under the old one ends here, for whoever adopts it.
func (d *Dispatcher) Renewed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, ch := range d.arrivals {
		close(ch)
		delete(d.arrivals, id)
	}
}

// stale tells that others may have taken over a call: it isn't this process's to send.
func (d *Dispatcher) stale(f *flight) bool {
	return d.disowned.Load() || f.instance != d.db.Instance()
}

func (d *Dispatcher) mine(ctx context.Context, who fleet.Principal, id fleet.CallID) (*fleet.Call, error) {
	missing := fleet.Errorf(protocol.CodeNotFound, "no call of that id is yours; drover audit list and GET /api/v1/calls show which there are")
	call, err := d.db.Call(ctx, id)
	if err != nil {
		if fe := fleet.AsError(err); fe.Code != protocol.CodeNotFound {
			return nil, err
		}
		return nil, missing
	}
	if call.Principal != who.ID && !who.Admin {
		return nil, missing
	}
	return call, nil
}
