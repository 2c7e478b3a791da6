package dispatch

import (
	"context"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

const (
	expectedWait = 6 * time.Second
	expectedLook = 100 * time.Millisecond // when it isn't expected any more nobody says so
)

// reach is route for a call that isn't counted in yet: if it waits, it counts as a request
// that waits. Where those are too many already it doesn't wait.
func (d *Dispatcher) reach(ctx context.Context, who fleet.Principal, a *fleet.Agent) (Caller, bool) {
	if caller, ok := d.router.Route(a.ID, a.Generation); ok || !d.coming(a) {
		return caller, ok
	}
	leave, err := d.mayWait(who)
	defer leave()
	if err != nil {
		return nil, false
	}
	return d.route(ctx, a)
}

// route finds the way to an agent. One that may be there in a moment is waited for, at most
// expectedWait: it's just being let in, was asked to connect anew, or its connection broke off
// and a newer one, to another replica perhaps, isn't known yet.
func (d *Dispatcher) route(ctx context.Context, a *fleet.Agent) (Caller, bool) {
	if caller, ok := d.router.Route(a.ID, a.Generation); ok || !d.coming(a) {
		return caller, ok
	}
	ctx, cancel := context.WithTimeout(ctx, expectedWait)
	defer cancel()
	look := time.NewTicker(expectedLook)
	defer look.Stop()
	for {
		arrived := d.arrival(a.ID)
		if caller, ok := d.router.Route(a.ID, a.Generation); ok || !d.coming(a) {
			return caller, ok
		}
		select {
		case <-arrived:
		case <-look.C:
		case <-d.closing:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

// coming tells that an agent without a way to it is worth waiting for: it's expected, and still
// the one that the call is for.
func (d *Dispatcher) coming(a *fleet.Agent) bool {
	return d.expected != nil && d.expected(a.ID) && !d.moved(a)
}
