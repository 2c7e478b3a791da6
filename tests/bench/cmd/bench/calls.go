package main

import (
	"context"
	"errors"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/drover-fleet/drover/tests/bench/load"
	"github.com/drover-fleet/drover/tests/bench/rig"
)

// workers is how many calls are under way at a time when rates are measured.
const workers = 64

// agentID is the real agent that calls go to.
const agentID = "bench-01"

// stand is one of the servers that are compared.
type stand struct {
	name, url, token string
	procs            []*rig.Proc // the server and its agent
}

func (b *bench) calls(ctx context.Context) error {
	if n, err := strconv.Atoi(b.gogc); err == nil {
		defer debug.SetGCPercent(debug.SetGCPercent(n))
	}
	if err := b.disk(); err != nil {
		return err
	}
	b.rig.GOGC = b.gogc
	defer func() { b.rig.GOGC = "" }()
	stands, drop, err := b.stands()
	if err == nil {
		err = b.era(ctx, stands, load.Modern)
	}
	if err == nil {
		err = b.era(ctx, stands, load.Legacy)
	}
	for _, s := range stands {
		for _, p := range s.procs {
			err = errors.Join(err, p.Stop())
		}
	}
	return errors.Join(err, drop())
}

// stands starts the servers, each Drover with an agent of its own. The bare SDK is first.
func (b *bench) stands() (out []stand, drop func() error, err error) {
	drop = func() error { return nil }
	bare, url, err := b.rig.Bare()
	if err != nil {
		return nil, drop, err
	}
	out = append(out, stand{name: "bare", url: url, procs: []*rig.Proc{bare}})
	add := func(name, dbURL string) error {
		srv, err := b.rig.Serve(name, dbURL)
		if err != nil {
			return err
		}
		agent, err := srv.Agent(agentID)
		if err != nil {
			return err
		}
		out = append(out, stand{name: name, url: srv.URL, token: srv.Token, procs: []*rig.Proc{srv.Proc, agent}})
		return nil
	}
	if err := add("sqlite", ""); err != nil {
		return out, drop, err
	}
	dbURL, remove, err := rig.Postgres()
	if err != nil {
		b.note("calls on Postgres", "not measured: "+err.Error())
		return out, drop, nil
	}
	return out, remove, add("postgres", dbURL)
}

// cpu is what the stand's processes have used; a database of its own isn't counted.
func (s stand) cpu() (sum time.Duration, err error) {
	for _, p := range s.procs {
		d, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

func (b *bench) era(ctx context.Context, stands []stand, era string) error {
	tool := load.Tool{Name: "fs_stat", Args: map[string]any{"agent_id": agentID, "path": "/"}}
	var sides, raw []load.Side
	for _, s := range stands {
		call, plain, err := load.MCP(ctx, s.url, s.token, era, tool)
		if err != nil {
			return err
		}
		sides = append(sides, load.Side{Name: s.name, Call: call, CPU: s.cpu})
		if plain != nil {
			raw = append(raw, load.Side{Name: s.name, Call: plain, CPU: s.cpu})
		}
	}
	if err := b.compare(ctx, sides, "fs_stat, "+era, era == load.Modern); err != nil {
		return err
	}
	if raw == nil {
		return nil
	}
	return b.compare(ctx, raw, "fs_stat, "+era+", client that only sends bytes", false)
}

// compare measures all sides against the first one; bars says that the result has to meet
// the limits that Drover sets itself.
func (b *bench) compare(ctx context.Context, sides []load.Side, what string, bars bool) error {
	took, err := load.Latencies(ctx, sides, b.rounds, b.each)
	if err != nil {
		return err
	}
	rates, err := load.Rates(ctx, sides, b.rounds, workers, b.turn)
	if err != nil {
		return err
	}
	b.note(what+": bare SDK, one at a time", ms(took[0].Median()))
	b.note(what+": bare SDK, 64 at a time", perSecond(rates[0])+", "+us(rates[0].CPUEach())+" of CPU a call")
	for i := 1; i < len(sides); i++ {
		limit := map[string]float64{"sqlite": 0.8, "postgres": 1.2}[sides[i].Name]
		more := load.Compare(took[i].Rounds, took[0].Rounds, func(a, b time.Duration) float64 { return (a - b).Seconds() * 1000 })
		name := what + ": Drover on " + sides[i].Name
		b.add(row{what: name + ", one at a time", value: ms(took[i].Median()), ratio: "+" + number(more, 2) + " ms",
			bar: when(bars, "at most +"+number(limit, 1)+" ms"), met: more <= limit})
		share := load.Compare(rates[i].PerSecond, rates[0].PerSecond, func(a, b float64) float64 { return a / b })
		b.add(row{what: name + ", 64 at a time", value: perSecond(rates[i]) + ", " + us(rates[i].CPUEach()) + " of CPU a call", ratio: number(share, 2) + " of bare",
			bar: when(bars, "at least 0.65"), met: share >= 0.65})
	}
	return nil
}

func when(yes bool, bar string) string {
	if yes {
		return bar
	}
	return ""
}
