package run_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol/capability"
)

// BenchmarkHandle is one call that does nothing: seal, journal, log and all.
func BenchmarkHandle(b *testing.B) {
	j, err := journal.Open(journal.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	reg, f := &run.Registry{}, newFixture(nil)
	run.Bind(reg, capability.ShellExec, func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
		return capability.ProcessOut{Stdout: "hi"}, nil
	})
	f.Runner = run.New(reg, f.id, j, slog.New(slog.NewTextHandler(io.Discard, nil)).With("agent", "web-01"))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if resp := f.handle(b.Context(), f.request(fmt.Sprintf("019ad3c4-5f6a-7b8c-9d0e-%012x", n))); resp.Error != nil {
			b.Fatal(resp.Error)
		}
	}
}
