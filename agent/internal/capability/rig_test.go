package capability_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/agent/internal/spool"
	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

// rig is an agent's inside without a tunnel: requests go in as they come off the wire.
type rig struct {
	*run.Runner
	reg  *run.Registry
	id   run.Identity
	host *capability.Host
	last atomic.Int64
}

func newRig(t testing.TB, roots ...string) *rig {
	t.Helper()
	files, err := guard.NewFiles(roots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	log := slog.New(slog.DiscardHandler)
	r := &rig{reg: &run.Registry{}, id: run.Identity{Fingerprint: make([]byte, 32), Generation: 1}}
	r.host = &capability.Host{AgentID: "web-01", Version: "1.2.3", RunAs: "tester", Files: files, Log: log,
		Output: t.TempDir(), OutputLimits: spool.Limits{PerCall: 16 << 20}}
	capability.Bind(r.reg, r.host)
	t.Cleanup(r.host.Close)
	r.Runner = run.New(r.reg, r.id, nil, log)
	return r
}

type args map[string]any

// request makes a sealed request with an id of its own.
func (r *rig) request(t testing.TB, tool string, a args) *protocol.Request {
	t.Helper()
	b, err := json.Marshal(a, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	req := &protocol.Request{ID: fmt.Sprintf("call-%d-%d", os.Getpid(), r.last.Add(1)), Tool: tool, Args: b, DeadlineMS: 60_000,
		Caller: protocol.Caller{Principal: "pat:0192", User: "ann's laptop; $(id)", Kind: "pat"}}
	req.Seal = protocol.B64(protocol.Seal(r.id.Fingerprint, r.id.Generation, req.ID, tool, req.Args))
	return req
}

// call executes one call; Out is decoded when there's a result.
func call[Out any](ctx context.Context, t testing.TB, r *rig, tool string, a args) (out Out, fault *protocol.Error) {
	t.Helper()
	return handled[Out](ctx, t, r, r.request(t, tool, a))
}

// handled executes a request as call does.
func handled[Out any](ctx context.Context, t testing.TB, r *rig, req *protocol.Request) (out Out, fault *protocol.Error) {
	t.Helper()
	resp := r.Handle(ctx, req, mux.Detached(func(string) {}))
	if resp.Result != nil {
		if err := json.Unmarshal(resp.Result, &out); err != nil {
			t.Fatalf("%s: result %.300s: %v", req.Tool, resp.Result, err)
		}
	}
	return out, resp.Error
}

func shell(t testing.TB, r *rig, a args) (spec.ProcessOut, *protocol.Error) {
	t.Helper()
	return call[spec.ProcessOut](t.Context(), t, r, "shell_exec", a)
}

// sh runs a command line that must end by itself.
func sh(t testing.TB, r *rig, line string) spec.ProcessOut {
	t.Helper()
	out, fault := shell(t, r, args{"command": line})
	if fault != nil {
		t.Fatalf("%s: %v", line, fault)
	}
	return out
}

func wantFault(t testing.TB, fault *protocol.Error, code protocol.Code, reason string) {
	t.Helper()
	if fault == nil || fault.Code != code || fault.Reason != reason {
		t.Errorf("got error %v, want %s (%s)", fault, code, reason)
	}
}

// within fails the test when fn takes longer than d.
func within(t testing.TB, d time.Duration, what string, fn func()) {
	t.Helper()
	began := time.Now()
	fn()
	if took := time.Since(began); took > d {
		t.Errorf("%s took %v, more than %v", what, took, d)
	}
}

// eventually polls what a real process does, until the deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Errorf("never came: %s", what)
}

func writeFile(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}
