// Command bench compares Drover, built as it's released, with the bare MCP SDK and with
// SSH, each pair in turns of one run, and measures memory and sizes. It prints a table and
// writes it into docs/benchmarks.md when asked. Start it in the repository's root, on Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/drover-fleet/drover/tests/bench/rig"
)

// options are the flags.
type options struct {
	only    string
	bin     string
	write   string
	gogc    string
	rounds  int
	each    int
	turn    time.Duration
	agents  int
	swarm   int
	settle  time.Duration
	away    time.Duration
	verbose bool
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "calls,shell,memory,swarm,replicas,sizes", "what to measure")
	flag.StringVar(&o.bin, "bin", "", "an absolute folder of programs to measure (drover, drover-agent, bare, swarm); built for the run when empty")
	flag.StringVar(&o.write, "write", "", "also write the table into this page (docs/benchmarks.md)")
	flag.StringVar(&o.gogc, "gogc", "400", "GOGC of all servers and of the client while calls are timed")
	flag.IntVar(&o.rounds, "rounds", 15, "turns that are counted")
	flag.IntVar(&o.each, "each", 200, "calls of a turn, one at a time")
	flag.DurationVar(&o.turn, "turn", time.Second, "length of a turn with 64 calls at a time")
	flag.IntVar(&o.agents, "agents", 5000, "simulated agents")
	flag.IntVar(&o.swarm, "swarm", 10000, "simulated agents that come back to a server, and are called")
	flag.DurationVar(&o.settle, "settle", 45*time.Second, "how long idle processes are left alone before their memory is read")
	flag.DurationVar(&o.away, "away", 40*time.Second, "how long an agent is without its server")
	flag.BoolVar(&o.verbose, "v", false, "say what is being done")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	options
	rig    *rig.Rig
	row    []row
	before string // the load average at the start
}

func run(ctx context.Context, o options) (err error) {
	r, err := rig.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b := &bench{options: o, rig: r, before: loadNow()}
	if r.Programs = o.bin; o.bin == "" {
		b.say("building as for a release")
		if err := r.Build(); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{{"calls", b.calls}, {"shell", b.shell}, {"memory", b.memory}, {"swarm", b.comesBack}, {"replicas", b.replicas}, {"sizes", b.sizes}} {
		if !strings.Contains(o.only, part.name) {
			continue
		}
		b.say("measuring %s", part.name)
		if err := part.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	fmt.Print(table(b.row, false))
	fmt.Println("load average of the minute before the run:", b.before)
	if o.write != "" {
		return writePage(o.write, b)
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	if b.verbose {
		fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
	}
}
