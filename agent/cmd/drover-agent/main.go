// Command drover-agent runs on a managed host: it dials out to a Drover server and
// executes the calls that the server sends to this host.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// version is set when a release is built.
var version = "dev"

func main() {
	// The agent is idle nearly always: a small heap is worth more than the collector's time.
	debug.SetGCPercent(50)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "drover-agent:", err)
		os.Exit(exitCode(err))
	}
}
