package dispatch

import (
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
)

// contained takes a step of one call. A panic there is that call's alone: it's told, and broke is
// true. Locks on a call's path are released by defer, and so is its place.
func (d *Dispatcher) contained(f *flight, step func()) (broke bool) {
	defer fault.Catch(func(p *fault.Panic) {
		broke = true
		d.obs.Caught(d.logOf(f), obs.InCall, p, "call", f.id, "agent", f.target.agent.ID, "tool", f.target.def.Name, "sent", f.sent)
	})
	step()
	return false
}

// aside runs what is done beside calls and that they don't need: a panic there costs that alone.
func (d *Dispatcher) aside(what string, agent fleet.AgentID, call fleet.CallID, do func()) {
	defer fault.Catch(func(p *fault.Panic) {
		d.obs.Caught(d.log, obs.InCall, p, "beside", what, "agent", agent, "call", call)
	})
	do()
}

// grounded is the way of a call that's on record and of whose preparation a step panicked.
func grounded(f *flight) (*protocol.Response, error) { return nil, f.broken() }

// broken is the end of a call of which a step panicked. Nothing is sent or asked any more: what
// is known of it here can't be trusted, but for whether it may have been sent.
func (f *flight) broken() error {
	if f.sent {
		return f.unknown("server_fault", "Drover failed inside while %s had this call (the server's log says more)", f.target.agent.ID)
	}
	err := fleet.Errorf(protocol.CodeInternal, "Drover failed inside before this was sent to %s; nothing ran; the server's log says more under call %s", f.target.agent.ID, f.id)
	err.Reason = "server_fault"
	return err
}
