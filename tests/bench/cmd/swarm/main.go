// Command swarm runs thousands of simulated agents against a server. Once a second, until
// SIGINT or SIGTERM, it prints "dialled N" and "connected N", the dials and the handshakes done
// of that second, when there were any or an agent is missing, and "online N" when that number
// changed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/drover-fleet/drover/tests/bench/swarm"
)

func main() {
	cfg := swarm.Config{Token: os.Getenv("SWARM_PAT")}
	flag.StringVar(&cfg.URL, "url", "http://127.0.0.1:7400", "the server's URL")
	flag.IntVar(&cfg.Agents, "agents", 5000, "how many agents; each needs a file descriptor here and at the server")
	flag.StringVar(&cfg.Prefix, "prefix", "sim", "what each agent's id begins with")
	flag.Parse()
	if err := run(cfg); err != nil {
		fmt.Fprintln(os.Stderr, "swarm:", err)
		os.Exit(1)
	}
}

func run(cfg swarm.Config) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := swarm.Enrol(ctx, cfg)
	if err != nil {
		return fmt.Errorf("enrol (SWARM_PAT must hold an administrator's token): %w", err)
	}
	fmt.Println("enrolled", cfg.Agents)
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, connected := -1, 0
	for {
		select {
		case <-ended:
			return nil
		case <-tick.C:
		}
		dialled, all, online := len(s.Dials()), s.Connected(), s.Online()
		if dialled > 0 || all > connected || online < cfg.Agents {
			fmt.Printf("dialled %d\nconnected %d\n", dialled, all-connected)
		}
		if connected = all; online != last {
			last = online
			fmt.Println("online", online)
		}
	}
}
