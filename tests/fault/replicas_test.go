package fault_test

import (
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// twoReplicas are two servers that are processes, on one Postgres and one NATS; agents move
// between them.
func twoReplicas(t *testing.T, checks, worlds int) run {
	programs, nats, postgres := harness.Build(t, ""), harness.NATS(t), harness.NewPostgres(t)
	begin := func(c *collector) *world {
		a := harness.Launch(c, programs, harness.LaunchOptions{DatabaseURL: postgres.Database(), Flags: []string{"--nats-url", nats}})
		return newWorldAt(c, newSite(a), newSite(a.Beside()))
	}
	return run{checks: checks, worlds: worlds, begin: begin, actions: []string{
		"call", "call", "call", "call", "call", "call", "call again", "cancel", "poll", "cut", "half-open", "reconnect",
		"move", "move", "move, the old one closes late", "move, the old one closes late",
		"server restart", "kill", "freeze", "back", "agent restart", "second connect", "re-key", "remove",
	}}
}

func newSite(d *harness.Deployment) *site {
	s := &site{Client: &d.Client, replica: d}
	s.restart = func() {
		d.Server.Stop()
		d.Serve(s.address())
	}
	return s
}

// TestModelOfReplicas is TestModel over two replicas, with actions on either, agents that
// move between them, replicas that are killed, stopped and restarted, and connections whose
// end the replica hears of late.
func TestModelOfReplicas(t *testing.T) { twoReplicas(t, 1, 8).check(t) }
