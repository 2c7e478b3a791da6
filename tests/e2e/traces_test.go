package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// parents is where a test's own client span is: a trace of its own for each n.
func parents(n int) (header, trace, span string) {
	trace, span = fmt.Sprintf("0af7651916cd43dd8448eb21%08x", n+1), fmt.Sprintf("b7ad6b71%08x", n+1)
	return "00-" + trace + "-" + span + "-01", trace, span
}

// postCall makes a call over REST with these headers.
func postCall(t *testing.T, d *harness.Deployment, header http.Header, agent, command string) harness.CallResult {
	t.Helper()
	body, err := json.Marshal(map[string]any{"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": command}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", d.URL+"/api/v1/calls", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+d.Admin)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	var res harness.CallResult
	if err == nil {
		err = json.Unmarshal(text, &res)
	}
	if err != nil || res.State != "succeeded" {
		t.Fatalf("HTTP %d %s: %v", resp.StatusCode, text, err)
	}
	return res
}

// checkTrace waits for the trace of one call across a hop and checks that it's one tree: each
// span under the right one, the last of them the one that the command saw.
func checkTrace(t *testing.T, c *collect, trace, root, request, callID, inCommand string) {
	t.Helper()
	// A span, the one above it, and whether it's on the replica that holds the tunnel.
	type place struct {
		above  string
		holder bool
	}
	want := map[string]place{
		"call shell_exec":  {request, false},
		"record intent":    {"call shell_exec", false},
		"wait for a place": {"call shell_exec", false},
		"record outcome":   {"call shell_exec", false},
		"hop client":       {"call shell_exec", false},
		"hop server":       {"hop client", true},
		"tunnel request":   {"hop server", true},
	}
	if request != "" {
		want[request] = place{"", false}
	}
	var got map[string]seen
	harness.Eventually(t, patience, "the trace "+trace+" is whole", func() bool {
		got = map[string]seen{}
		for _, s := range c.of(trace) {
			name := s.name
			if name == "hop" {
				name += " " + strings.ToLower(strings.TrimPrefix(s.kind.String(), "SPAN_KIND_"))
			}
			if _, twice := got[name]; twice {
				t.Fatalf("%s came twice", name)
			}
			got[name] = s
		}
		return len(got) >= len(want)
	})
	if len(got) != len(want) {
		t.Fatalf("there are %q", slices.Sorted(maps.Keys(got)))
	}
	here, there := got["call shell_exec"].instance, got["tunnel request"].instance
	if here == there || !strings.HasPrefix(here, "drover/test/") {
		t.Errorf("the call is on %q, the tunnel on %q", here, there)
	}
	for name, p := range want {
		s, above, at := got[name], root, here
		if p.above != "" {
			above = got[p.above].id
		}
		if p.holder {
			at = there
		}
		if s.id == "" || s.parent != above || s.instance != at || s.failed || s.end < s.start {
			t.Errorf("%s: %+v, want it under %q (%s) on %s", name, s, p.above, above, at)
		}
	}
	call := got["call shell_exec"].attrs
	if call["drover.call.id"] != callID || call["drover.agent.id"] != "web-01" || call["drover.tool"] != "shell_exec" || call["drover.outcome"] != "succeeded" {
		t.Errorf("the call's span says %v", call)
	}
	if want := "00-" + trace + "-" + got["tunnel request"].id + "-01"; inCommand != want {
		t.Errorf("the command saw TRACEPARENT=%q, want %q", inCommand, want)
	}
}

// TestOneTraceAcrossTheHop: a call through one replica to an agent of another one is one
// trace, from the client's own span to what the command sees, over REST and over MCP in both
// eras; and nothing of what's called or who calls is in it.
func TestOneTraceAcrossTheHop(t *testing.T) {
	c := newCollector(t)
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t), "--log-level", "debug"}, Env: c.env()})
	b := a.Beside()
	a.Host("web-01")
	b.WaitState("web-01", "online")
	const command = "echo $TRACEPARENT # s3cret-argument"

	header, trace, span := parents(0)
	res := postCall(t, b, http.Header{"Traceparent": {header}, "Tracestate": {"vendor=s3cret"}, "Baggage": {"user=s3cret"}}, "web-01", command)
	checkTrace(t, c, trace, span, "POST /api/v1/calls", res.CallID, strings.TrimSpace(res.Stdout()))

	for i, era := range harness.Eras() {
		header, trace, span := parents(i + 1)
		s := b.MCP(b.Admin, era, nil)
		p := params("shell_exec", map[string]any{"agent_id": "web-01", "command": command})
		p.Meta = mcp.Meta{"traceparent": header}
		got, err := s.CallTool(t.Context(), p)
		if err != nil || got.IsError {
			t.Fatalf("%s: %v %+v", era, err, got)
		}
		said := got.Content[0].(*mcp.TextContent).Text
		at := strings.Index(said, "00-"+trace)
		if at < 0 {
			t.Fatalf("%s: the command saw another trace: %s", era, said)
		}
		id := ""
		harness.Eventually(t, patience, "the call's span", func() bool {
			for _, s := range c.of(trace) {
				if s.name == "call shell_exec" {
					id = s.attrs["drover.call.id"]
					if len(s.links) != 1 { // the HTTP request that brought it
						t.Errorf("%s: links %v", era, s.links)
					}
				}
			}
			return id != ""
		})
		checkTrace(t, c, trace, span, "", id, said[at:at+55])
	}

	raw := c.everything()
	for _, secret := range []string{"s3cret", a.Admin, a.Admin[len(a.Admin)-20:], "of the collector"} {
		if bytes.Contains(raw, []byte(secret)) {
			t.Errorf("%.6s… is in the traces", secret)
		}
	}
	harness.Eventually(t, patience, "the log names the trace", func() bool { return bytes.Contains(b.Server.Log(), []byte(`"trace_id":"`+trace+`"`)) })
	if bytes.Contains(b.Server.Log(), []byte("of the collector")) {
		t.Error("the collector's credential is in the log")
	}
}

// TestHostileTraceparents: what isn't one well-formed context is none. The call runs, in a
// trace of its own.
func TestHostileTraceparents(t *testing.T) {
	c := newCollector(t)
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Env: c.env()})
	d.Host("web-01")
	good, trace, _ := parents(0)
	const command = `echo "$TRACEPARENT"`
	bad := [][]string{
		{good, good}, {good + "," + good}, {strings.ToUpper(good)}, {"ff" + good[2:]}, {good + "-x"}, {strings.Repeat("0", 20_000)}, {"00-" + strings.Repeat("0", 32) + good[35:]},
		{good[:53] + "zz"}, {""}, {"\u0661\u0661" + good[2:]}, {"00-$(id)" + good[8:]},
	}
	ids := map[string]bool{}
	check := func(said string) {
		t.Helper()
		said = strings.TrimSpace(said)
		if len(said) != 55 || said[3:35] == trace || ids[said[3:35]] || !strings.HasSuffix(said, "-01") {
			t.Errorf("the command saw %q", said)
			return
		}
		ids[said[3:35]] = true
	}
	for _, values := range bad {
		check(postCall(t, d, http.Header{"Traceparent": values}, "web-01", command).Stdout())
	}
	for _, meta := range []any{good + " ", strings.Repeat("a", 60_000), 7, []any{good}, map[string]any{"a": good}, nil} {
		p := params("shell_exec", map[string]any{"agent_id": "web-01", "command": command})
		p.Meta = mcp.Meta{"traceparent": meta}
		got, err := d.MCP(d.Admin, harness.Modern, nil).CallTool(t.Context(), p)
		if err != nil || got.IsError {
			t.Errorf("%v: %v %+v", meta, err, got)
			continue
		}
		text := got.Content[0].(*mcp.TextContent).Text
		_, said, _ := strings.Cut(text, "\n")
		check(said)
	}
	if len(c.of(trace)) > 0 {
		t.Errorf("spans in a trace that nobody named well: %+v", c.of(trace))
	}
}

// TestWithoutACollector: one that's away, or takes connections and says nothing, costs no
// call anything, and the server ends in time.
func TestWithoutACollector(t *testing.T) {
	hold := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	t.Cleanup(func() { close(hold); silent.Close() })
	for name, endpoint := range map[string]string{"away": "http://127.0.0.1:9", "silent": silent.URL} {
		t.Run(name, func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Env: []string{
				"OTEL_EXPORTER_OTLP_ENDPOINT=" + endpoint, "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_BSP_MAX_QUEUE_SIZE=16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=8"}})
			d.Host("web-01")
			for range 20 {
				postCall(t, d, nil, "web-01", "true")
			}
			d.Server.Stop()
			if d.Server.Err != nil {
				t.Error(d.Server.Err)
			}
			for line := range bytes.Lines(d.Server.Log()) {
				if !bytes.HasPrefix(line, []byte(`{"time"`)) {
					t.Errorf("written past the log: %s", line)
				}
			}
		})
	}
}
