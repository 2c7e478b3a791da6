package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/bench/load"
	"github.com/drover-fleet/drover/tests/bench/rig"
)

// comesBack calls a large fleet of simulated agents, and then ends its server, in order and
// by force: all agents come back, spread out, and other requests don't feel it.
func (b *bench) comesBack(ctx context.Context) error {
	srv, err := b.rig.Serve("fleet", "")
	if err != nil {
		return err
	}
	swarm, err := srv.Swarm(b.swarm)
	if err != nil {
		return err
	}
	if err := b.callAll(ctx, srv); err != nil {
		return err
	}
	for _, how := range []struct {
		name string
		end  func() error
	}{{"restarted", srv.Stop}, {"killed and started again", func() error { return srv.Kill() }}} {
		if err := b.backAfter(ctx, srv, swarm, how.name, how.end); err != nil {
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

// backAfter ends the server, starts it again, and measures how the agents come back.
func (b *bench) backAfter(ctx context.Context, srv *rig.Server, swarm *rig.Proc, how string, end func() error) error {
	if err := pause(ctx, protocol.Settled+2*time.Second); err != nil {
		return err
	}
	said, err := swarm.Said()
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	if err := srv.Restart(); err != nil {
		return err
	}
	began := time.Now()
	asking, stop := context.WithCancel(ctx)
	var took []time.Duration
	var failed int
	var asked sync.WaitGroup
	asked.Go(func() { took, failed = ask(asking, srv.URL+"/healthz") })
	err = rig.AllOnline(swarm, b.swarm, said)
	back := time.Since(began)
	stop()
	asked.Wait()
	if err != nil {
		return err
	}
	each, err := rig.Dialled(swarm, said)
	if err != nil || len(each) == 0 {
		return fmt.Errorf("the swarm's dials: %v, %w", each, err)
	}
	sum := 0
	for _, n := range each {
		sum += n
	}
	mean := float64(sum) / float64(len(each))
	what := fmt.Sprintf("server with %d agents %s", b.swarm, how)
	b.add(row{what: what + ": all are back", value: back.Round(100 * time.Millisecond).String(), bar: "at most 90 s", met: back <= 90*time.Second})
	b.add(row{what: what + ": dials in the busiest second", value: fmt.Sprint(slices.Max(each)), ratio: number(float64(slices.Max(each))/mean, 2) + " of the mean",
		bar: "at most 3.00", met: float64(slices.Max(each)) <= 3*mean})
	b.add(row{what: what + ": other requests (/healthz), 99 of 100 within", value: ms(load.Quantile(took, 0.99)), ratio: fmt.Sprintf("%d of %d failed", failed, len(took)),
		bar: "none fails", met: failed == 0})
	return nil
}

// ask asks for something small a hundred times a second until ctx ends.
func ask(ctx context.Context, url string) (took []time.Duration, failed int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return took, failed
		case <-tick.C:
		}
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return took, failed + 1
		}
		began := time.Now()
		if okay(http.DefaultClient, req, nil) != nil {
			failed++
		}
		took = append(took, time.Since(began))
	}
}
