package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/tests/bench/rig"
)

// memory reads what idle processes hold. GOGC is what Drover chooses itself.
func (b *bench) memory(ctx context.Context) error {
	if err := b.agentMemory(ctx); err != nil {
		return err
	}
	return b.serverMemory(ctx)
}

// agentMemory watches a real agent, first idle, then without its server.
func (b *bench) agentMemory(ctx context.Context) error {
	srv, err := b.rig.Serve("away", "")
	if err != nil {
		return err
	}
	agent, err := srv.Agent(agentID)
	if err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	idle, err := agent.RSS()
	if err != nil {
		return err
	}
	if err := srv.Stop(); err != nil {
		return err
	}
	dials, stop, err := slam(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		return err
	}
	defer stop()
	most := idle
	for end := time.Now().Add(b.away); time.Now().Before(end); {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		rss, err := agent.RSS()
		if err != nil {
			return err
		}
		most = max(most, rss)
	}
	b.add(row{what: "agent, idle", value: mib(idle), bar: "at most 20 MiB", met: idle <= 20<<20})
	b.add(row{what: fmt.Sprintf("agent, %s without its server (%d failed dials): most", b.away, dials.Load()), value: mib(most),
		ratio: fmt.Sprintf("%+.1f MiB", float64(most-idle)/(1<<20)), bar: "flat: at most 20 MiB", met: most <= 20<<20})
	return agent.Stop()
}

// slam listens where a server was and hangs up on whoever dials.
func slam(addr string) (dials *atomic.Int64, stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	dials = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			_ = c.Close()
		}
	}()
	return dials, func() { _ = l.Close() }, nil
}

// serverMemory connects simulated agents and leaves them alone; then the server is
// restarted, and all of them come back.
func (b *bench) serverMemory(ctx context.Context) error {
	srv, err := b.rig.Serve("swarm", "")
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
	swarm, err := srv.Swarm(b.agents)
	if err != nil {
		return err
	}
	b.note(fmt.Sprintf("server, %d agents: enrol and connect all", b.agents), time.Since(began).Round(time.Second).String())
	if err := b.perAgent(ctx, srv, empty, b.agents, "after enrolment"); err != nil {
		return err
	}
	said, err := swarm.Said()
	if err != nil {
		return err
	}
	began = time.Now()
	if err := srv.Stop(); err != nil {
		return err
	}
	if err := srv.Restart(); err != nil {
		return err
	}
	if err := rig.AllOnline(swarm, b.agents, said); err != nil {
		return err
	}
	b.note(fmt.Sprintf("server, %d agents: restart until all are back", b.agents), time.Since(began).Round(time.Second).String())
	return b.perAgent(ctx, srv, empty, b.agents, "after a restart")
}

// perAgent reads what n idle agents hold of the server's memory.
func (b *bench) perAgent(ctx context.Context, srv *rig.Server, empty int64, n int, when string) error {
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	full, err := srv.RSS()
	if err != nil {
		return err
	}
	each := float64(full-empty) / float64(n) / 1024
	b.add(row{what: fmt.Sprintf("server, %d idle agents, %s (empty: %s)", n, when, mib(empty)), value: mib(full),
		ratio: number(each, 1) + " KiB an agent", bar: "at most 40 KiB", met: each <= 40})
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sizes are those of the programs that were measured, without symbols.
func (b *bench) sizes(context.Context) error {
	for _, name := range []string{"drover-agent", "drover"} {
		n, err := b.rig.Size(name)
		if err != nil {
			return err
		}
		r := row{what: name + ", stripped", value: fmt.Sprintf("%.1f MB", float64(n)/1e6)}
		if name == "drover-agent" {
			r.bar, r.met = "at most 15 MB", n <= 15_000_000
		}
		b.add(r)
	}
	return nil
}
