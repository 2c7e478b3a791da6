package dispatch

import (
	"context"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Drain stops admitting calls and waits for the running ones until ctx is done. Those that
// wait for their agent, and those that still run then, are left open: nothing is cancelled
// on a host because a server is restarted, and the next process asks for them (see Adopt).
// Their callers get a handle.
func (d *Dispatcher) Drain(ctx context.Context) {
	d.mu.Lock()
	d.draining = true
	d.mu.Unlock()
	close(d.closing)
	if d.idle(ctx) {
		return
	}
	d.log.Warn("calls were still under way at the end; whoever serves this database next, or another replica, asks their agents for them", "calls", d.Open())
	close(d.gone)
	d.endDownloads()
}

// endDownloads ends what can't go on without its client, who may not be reading.
func (d *Dispatcher) endDownloads() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.open {
		if f.sink != nil {
			f.cancel(errStops)
		}
	}
}

// Settle waits, after Drain and the end of the tunnels, for what is still being written; what
// isn't at the end of ctx is open, as Drain has said.
func (d *Dispatcher) Settle(ctx context.Context) {
	if !d.idle(ctx) {
		d.log.Debug("not all that was being written is", "calls", d.Open())
	}
}

// idle waits until no call is under way; false when ctx ended first.
func (d *Dispatcher) idle(ctx context.Context) bool {
	idle := make(chan struct{})
	go func() {
		d.wg.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}

// Open tells how many calls are under way.
func (d *Dispatcher) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// Ended tells that no call is under way on the agent from here.
func (d *Dispatcher) Ended(agent fleet.AgentID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.open {
		if f.target.agent.ID == agent && !f.waits() {
			return false
		}
	}
	return true
}
