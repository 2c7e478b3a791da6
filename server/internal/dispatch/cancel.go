package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// cancelRecord is how long a cancel waits for the record before it goes on without.
const cancelRecord = 3 * time.Second

// Cancel ends a call and tells how it ended; a call that has ended is left as it is. The
// request is on record first, so that it counts also when the agent is away and this server
// ends: Result.CancelAt says so. If the record can't be written the call is cancelled all the
// same, and CancelAt is zero.
func (d *Dispatcher) Cancel(ctx context.Context, who fleet.Principal, id fleet.CallID) (Result, error) {
	call, err := d.mine(ctx, who, id)
	if err != nil {
		return Result{}, err
	}
	if call.State.Final() {
		return d.resultOf(call, false), nil
	}
	d.request(who, id)
	wait := protocol.CancelGrace + 5*time.Second
	leave, err := d.mayWait(who)
	defer leave()
	if err != nil { // its end counts all the same, and is to be asked for
		wait = AtOnce
	}
	f := d.find(id)
	if f == nil { // it has ended, or another replica has it
		if d.others == nil {
			return d.elsewhere(ctx, id, 0)
		}
		d.others(id)
		return d.elsewhere(ctx, id, wait)
	}
	f.cancel(errAsked)
	return d.await(ctx, f, Request{Wait: wait})
}

// request puts on record that the end of a call was asked for, if that's possible soon.
func (d *Dispatcher) request(who fleet.Principal, id fleet.CallID) {
	c := fleet.Cancel{CallID: id, Principal: who.ID, Name: who.Name, At: time.Now()}
	written := make(chan struct{})
	ctx, stop := context.WithTimeout(context.Background(), cancelRecord)
	go func() {
		defer stop()
		defer close(written)
		d.aside("a cancel's record", "", id, func() { d.recordCancel(ctx, c) })
	}()
	select {
	case <-written:
	case <-ctx.Done():
	}
}

func (d *Dispatcher) recordCancel(ctx context.Context, c fleet.Cancel) {
	switch err := d.db.RecordCancel(ctx, c); {
	case err == nil:
		if f := d.find(c.CallID); f != nil {
			f.asked(c.At, c.Name)
		}
	case !errors.Is(err, store.ErrAlreadyFinal):
		d.log.Warn("a cancel is not on record: it's lost if this server ends before the call does", "call", c.CallID, "err", err)
	}
}

// CancelHere ends a call if it's under way here: another replica's caller asks.
func (d *Dispatcher) CancelHere(id fleet.CallID) {
	if f := d.find(id); f != nil {
		f.cancel(errAsked)
	}
}

// Heed ends the calls under way here whose end is asked for on record: another replica's word
// may have been lost.
func (d *Dispatcher) Heed(ctx context.Context) error {
	ids, err := d.db.CancelsHere(ctx)
	for _, id := range ids {
		d.CancelHere(id)
	}
	return err
}

// Purge cancels the calls that are queued for an agent, on all replicas, and returns how
// many. It's on record when it returns. It's for administrators.
func (d *Dispatcher) Purge(ctx context.Context, who fleet.Principal, agent string) (int, error) {
	if !who.Admin {
		return 0, fleet.Errorf(protocol.CodeDenied, "purging an agent's queue needs an administrator's credential")
	}
	id, ok := fleet.ParseAgentID(agent)
	if !ok {
		return 0, fleet.Errorf(protocol.CodeNotFound, "there's no such agent; the list of agents shows their ids")
	}
	calls, err := d.db.QueuedFor(ctx, id)
	if err != nil {
		return 0, err
	}
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() {
			d.aside("a purge", id, call, func() {
				d.request(who, call)
				if f := d.find(call); f != nil {
					f.cancel(errPurged)
				} else if d.others != nil {
					d.others(call)
				}
			})
		})
	}
	all.Wait()
	return len(calls), nil
}

// asked notes that the end of the call was asked for, as it's on record.
func (f *flight) asked(at time.Time, by string) {
	if at.IsZero() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cancelAt.IsZero() {
		f.cancelAt, f.cancelBy = at, by
	}
}

// waits tells that the call hasn't been sent.
func (f *flight) waits() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state == fleet.Queued
}
