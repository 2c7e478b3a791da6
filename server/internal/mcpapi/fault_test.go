package mcpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// failing is a path of calls that panics once its caller was told that the call is on its way.
type failing struct{ Dispatcher }

func (failing) Call(_ context.Context, _ fleet.Principal, req dispatch.Request) (dispatch.Result, error) {
	if req.Progress != nil {
		req.Progress(dispatch.Update{CallID: "c", Agent: "web-01"})
	}
	panic("boom")
}

func (failing) Refuse(fleet.Principal, fleet.Refusal) {}

// A fault in the handler of a message is that message's error, whoever runs the handler: the SDK
// does so in goroutines of its own.
func TestAFaultInAMessage(t *testing.T) {
	alive := func(string) bool { return true }
	var told atomic.Int64
	log := slog.New(counting{&told})
	defs := []*capability.Definition{capability.FSStat.Definition}
	a := New(Config{Dispatch: failing{}, Fleet: grants{tools: defs}, Bodies: edge.NewBodies(alive), Log: log, Version: "test"})
	srv := httptest.NewServer(edge.Authenticate(edge.NewServing(alive), func(*http.Request) (fleet.Principal, error) { return who("p"), nil })(a))
	defer srv.Close()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"n","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},"progressToken":1}`
	for way, member := range map[string]string{"without the SDK": "", "by the SDK": `,"requestState":""`} {
		body := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fs_stat","arguments":{"agent_id":"web-01","path":"/"},` + meta + member + `}}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Authorization": "Bearer t", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			versionHeader: modernVersion, methodHeader: methodCall, nameHeader: "fs_stat"} {
			r.Header.Set(name, value)
		}
		before := told.Load()
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		got, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if s := string(got); !strings.Contains(s, `"code":-32603`) || !strings.Contains(s, "Drover failed inside") || strings.Contains(s, "boom") {
			t.Errorf("%s: HTTP %d %s", way, resp.StatusCode, s)
		}
		if n := told.Load() - before; n != 1 {
			t.Errorf("%s: the log tells of it in %d lines", way, n)
		}
	}
}

// counting counts the lines that tell of a fault.
type counting struct{ n *atomic.Int64 }

func (counting) Enabled(context.Context, slog.Level) bool { return true }
func (c counting) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "a fault inside") {
		c.n.Add(1)
	}
	return nil
}
func (c counting) WithAttrs([]slog.Attr) slog.Handler { return c }
func (c counting) WithGroup(string) slog.Handler      { return c }

// What tells a client how its call goes, and that its stream lives, may fail in a goroutine of
// its own: the call and the others go on.
func TestAFaultInWhatIsToldMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broke := 0
		caught := func(*fault.Panic) { broke++ }
		p := newProgress(func(float64, string) { panic("boom") }, caught)
		p.update(dispatch.Update{CallID: "c", Agent: "web-01"})
		time.Sleep(2 * progressFirst)
		synctest.Wait()
		p.stop()
		s := newStream(gone{}, true, true, caught)
		s.Header().Set("Content-Type", "text/event-stream")
		s.WriteHeader(http.StatusOK)
		time.Sleep(2 * firstPulse)
		synctest.Wait()
		s.end()
		if broke != 2 {
			t.Errorf("%d of the two faults were caught", broke)
		}
	})
}

// gone is a ResponseWriter whose pulses panic, as after its handler's end.
type gone struct{}

func (gone) Header() http.Header { return http.Header{} }
func (gone) WriteHeader(int)     {}
func (gone) Write(b []byte) (int, error) {
	if string(b) == string(pulseBytes) {
		panic("boom")
	}
	return len(b), nil
}

// broken is a session that fails inside when it's closed.
type broken struct{}

func (broken) Close() error { panic("boom") }

// A fault while a session is closed costs that one, beside which the others and the server go on.
func TestAFaultWhileASessionCloses(t *testing.T) {
	var heard *fault.Panic
	hangUp(broken{}, func(p *fault.Panic) { heard = p })
	if heard == nil || heard.What != "boom" {
		t.Errorf("%+v", heard)
	}
}
