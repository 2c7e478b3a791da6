package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/tests/bench/load"
	"github.com/drover-fleet/drover/tests/bench/rig"
)

// perReplica is how many simulated agents each replica has.
const perReplica = 20

// replicas measures what the way over NATS adds, and what more replicas bring on one machine.
func (b *bench) replicas(ctx context.Context) (err error) {
	dbURL, drop, err := rig.Postgres()
	if err != nil {
		b.note("several replicas", "not measured: "+err.Error())
		return nil
	}
	nats := cmp.Or(os.Getenv("DROVER_TEST_NATS"), "nats://127.0.0.1:4222")
	var all []*rig.Server
	var procs []*rig.Proc
	defer func() {
		for _, p := range procs {
			err = errors.Join(err, p.Stop())
		}
		err = errors.Join(err, drop())
	}()
	for i := range 3 {
		var first *rig.Server
		if i > 0 {
			first = all[0]
		}
		s, err := b.rig.Replica(fmt.Sprintf("replica-%d", i), dbURL, nats, first)
		if err != nil {
			return err
		}
		swarm, err := s.SwarmOf(fmt.Sprintf("on%d", i), perReplica)
		if err != nil {
			return err
		}
		all, procs = append(all, s), append([]*rig.Proc{swarm, s.Proc}, procs...)
	}
	if err := b.hop(ctx, all); err != nil {
		return err
	}
	return b.more(ctx, all)
}

// hop compares a call through the replica that has the agent with one through another.
func (b *bench) hop(ctx context.Context, all []*rig.Server) error {
	there := func() string { return "on0-00000" }
	took, err := load.Latencies(ctx, []load.Side{{Name: "here", Call: statCall(all[0], there)}, {Name: "hop", Call: statCall(all[1], there)}}, b.rounds, b.each)
	if err != nil {
		return err
	}
	more := load.Compare(took[1].Rounds, took[0].Rounds, func(a, b time.Duration) float64 { return (a - b).Seconds() * 1000 })
	b.note("REST fs_stat, one at a time, through the replica that has the agent", ms(took[0].Median()))
	b.add(row{what: "the same through another replica, over NATS", value: ms(took[1].Median()), ratio: "+" + number(more, 2) + " ms", bar: "at most +0.4 ms", met: more <= 0.4})
	return nil
}

// more compares one, two and three replicas, with agents and calls spread evenly: of two
// replicas' calls half go over NATS, of three replicas' two thirds.
func (b *bench) more(ctx context.Context, all []*rig.Server) error {
	var sides []load.Side
	for n := 1; n <= len(all); n++ {
		var calls []func(context.Context) error
		var next, turn atomic.Int64
		for _, s := range all[:n] {
			calls = append(calls, statCall(s, func() string {
				k := int(next.Add(1))
				return fmt.Sprintf("on%d-%05d", k/perReplica%n, k%perReplica)
			}))
		}
		sides = append(sides, load.Side{Name: fmt.Sprint(n), Call: func(ctx context.Context) error { return calls[int(turn.Add(1))%n](ctx) }})
	}
	rates, err := load.Rates(ctx, sides, b.rounds, workers, b.turn)
	if err != nil {
		return err
	}
	b.note("REST fs_stat, 64 at a time, over one replica", perSecond(rates[0]))
	for i := 1; i < len(rates); i++ {
		share := load.Compare(rates[i].PerSecond, rates[0].PerSecond, func(a, b float64) float64 { return a / b })
		b.add(row{what: fmt.Sprintf("over %d replicas on the same machine", i+1), value: perSecond(rates[i]), ratio: number(share, 2) + " of one"})
	}
	return nil
}
