package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/bench/load"
	"github.com/drover-fleet/drover/tests/bench/rig"
)

// comesBack calls a large fleet of simulated agents, and then ends its server, in order and
// by force: all agents come back, spread out, and other requests don't feel it. In between
// it reads what the idle agents cost the server in memory.
func (b *bench) comesBack(ctx context.Context) error {
	srv, err := b.rig.Serve("fleet", "")
	if err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	empty, err := srv.RSS()
	if err != nil {
		return err
	}
	began := time.Now()
	swarm, err := srv.Swarm(b.swarm)
	if err != nil {
		return err
	}
	b.note(fmt.Sprintf("server, %d agents: enrol and connect all", b.swarm), time.Since(began).Round(time.Second).String())
	if err := b.perAgent(ctx, srv, empty, b.swarm, "after enrolment"); err != nil {
		return err
	}
	if err := b.callAll(ctx, srv); err != nil {
		return err
	}
	if err := b.perAgent(ctx, srv, empty, b.swarm, "after the calls"); err != nil {
		return err
	}
	for _, how := range []struct {
		name string
		end  func() error
	}{{"restarted", srv.Stop}, {"killed and started again", func() error { return srv.Kill() }}} {
		if err := b.backAfter(ctx, srv, swarm, how.name, how.end); err != nil {
			return err
		}
		if err := b.perAgent(ctx, srv, empty, b.swarm, how.name); err != nil {
			return err
		}
	}
	return nil
}

// callAll compares calls to any agent with calls to one.
func (b *bench) callAll(ctx context.Context, srv *rig.Server) error {
	var next atomic.Int64
	sides := []load.Side{
		{Name: "one", Call: restCall(srv, func() int { return 0 })},
		{Name: "all", Call: restCall(srv, func() int { return int(next.Add(1)) % b.swarm })},
	}
	rates, err := load.Rates(ctx, sides, b.rounds, workers, b.turn)
	if err != nil {
		return err
	}
	share := load.Compare(rates[1].PerSecond, rates[0].PerSecond, func(a, b float64) float64 { return a / b })
	b.note("calls over REST to one simulated agent, 64 at a time", perSecond(rates[0]))
	b.add(row{what: fmt.Sprintf("calls over REST to %d agents in turn, 64 at a time", b.swarm), value: perSecond(rates[1]),
		ratio: number(share, 2) + " of one agent", bar: "at least 0.80", met: share >= 0.8})
	return nil
}

// restCall makes a small call to the agent of the number that pick gives.
func restCall(srv *rig.Server, pick func() int) func(context.Context) error {
	return statCall(srv, func() string { return fmt.Sprintf("sim-%05d", pick()) })
}

// statCall makes a small call to the agent that pick names.
func statCall(srv *rig.Server, pick func() string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	return func(ctx context.Context) error {
		body := fmt.Sprintf(`{"agent_id":%q,"tool":"fs_stat","args":{"path":"/"}}`, pick())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/api/v1/calls", bytes.NewReader([]byte(body)))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+srv.Token)
		req.Header.Set("Content-Type", "application/json")
		return okay(client, req, []byte(`"succeeded"`))
	}
}

// okay sends a request whose answer must have status 200 and hold what is wanted.
func okay(client *http.Client, req *http.Request, want []byte) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(b, want)) {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return err
}

// backAfter ends the server, starts it again, and measures how the agents come back, and
// how other requests fare meanwhile beside the same ones of a quiet moment before.
func (b *bench) backAfter(ctx context.Context, srv *rig.Server, swarm *rig.Proc, how string, end func() error) error {
	if err := pause(ctx, protocol.Settled+2*time.Second); err != nil {
		return err
	}
	quiet := b.others(ctx, srv, func() error { return pause(ctx, 5*time.Second) })
	said, err := swarm.Said()
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	began := time.Now()
	if err := srv.Restart(); err != nil {
		return err
	}
	took := b.others(ctx, srv, func() error { err = rig.AllOnline(swarm, b.swarm, said); return err })
	back := time.Since(began)
	if err != nil {
		return err
	}
	dialled, err := rig.EachSecond(swarm, "dialled", said)
	if err != nil {
		return err
	}
	connected, err := rig.EachSecond(swarm, "connected", said)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("server with %d agents %s", b.swarm, how)
	b.add(row{what: what + ": all are back, its start included", value: back.Round(100 * time.Millisecond).String(), bar: "at most 90 s", met: back <= 90*time.Second})
	b.peak(what+": dials in the busiest second", dialled)
	b.peak(what+": connected in the busiest second", connected)
	for i, o := range took {
		b.add(row{what: what + ": meanwhile " + o.name + ", 99 of 100 within", value: ms(load.Quantile(o.took, 0.99)),
			ratio: fmt.Sprintf("%s before; %d of %d failed", ms(load.Quantile(quiet[i].took, 0.99)), o.failed, len(o.took)), bar: "none fails", met: o.failed == 0})
	}
	return nil
}

// peak compares the busiest second with the mean of all from the first to the last in which
// there was something, those in between without anything included.
func (b *bench) peak(what string, each []int) {
	sum, most := 0, 0
	for _, n := range each {
		sum, most = sum+n, max(most, n)
	}
	over := float64(most) * float64(len(each)) / float64(max(sum, 1))
	b.add(row{what: what, value: fmt.Sprint(most), ratio: fmt.Sprintf("%s of the mean of %d s", number(over, 2), len(each)), bar: "at most 3.00", met: sum > 0 && over <= 3})
}

// other is a small request that is made again and again while agents come back.
type other struct {
	name   string
	do     func(context.Context) error
	took   []time.Duration
	failed int
}

// others makes three kinds of requests, each at a steady rate, while f runs: one that needs
// nothing, one that needs the database, and a call to an agent. The call counts from the
// first one on that succeeds: before that its agent isn't back.
func (b *bench) others(ctx context.Context, srv *rig.Server, f func() error) []*other {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	get := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+srv.Token)
			return okay(client, req, nil)
		}
	}
	all := []*other{
		{name: "/healthz", do: get("/healthz")},
		{name: "an agent's page over REST", do: get("/api/v1/agents/sim-00000")},
		{name: "calls to an agent that is back", do: restCall(srv, func() int { return 0 })},
	}
	asking, stop := context.WithCancel(ctx)
	var asked sync.WaitGroup
	for i, o := range all {
		asked.Go(func() { o.ask(asking, i == 2) })
	}
	_ = f() // the caller keeps its error
	stop()
	asked.Wait()
	return all
}

// ask makes the request fifty times a second until ctx ends; the next one waits for the one
// before. Those that ctx cuts off don't count, nor, with fromFirst, those before the first
// that succeeds.
func (o *other) ask(ctx context.Context, fromFirst bool) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		err := o.do(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			fromFirst = false
		case fromFirst:
			continue
		default:
			o.failed++
		}
		o.took = append(o.took, time.Since(began))
	}
}
