//go:build soak && linux

package fault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/bench/swarm"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestSoakModel: 520 random schedules.
func TestSoakModel(t *testing.T) { oneServer(26).check(t) }

// TestSoakModelOfReplicas: 500 random schedules over two replicas.
func TestSoakModelOfReplicas(t *testing.T) { twoReplicas(t, 25, 20).check(t) }

// TestSoakSlowLink: 50 MB each way over 1 Mbit/s and 300 ms, a small call every 5 s.
func TestSoakSlowLink(t *testing.T) {
	slowLink(t, 50_000_000, fault.Link{Delay: 150 * time.Millisecond, Rate: 125_000}, 5*time.Second)
}

// TestSoakStorm: 100,000 calls over 50 real agents and 500 simulated ones, while the real
// ones reconnect, get new keys, are removed and replaced by others. None runs elsewhere than
// named, none twice.
func TestSoakStorm(t *testing.T) {
	const real, simulated, calls, clients = 50, 500, 100_000, 32
	f := harness.New(t, harness.Options{})
	proxy := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	log := filepath.Join(t.TempDir(), "log")
	via := func(c *agent.Config) { c.Server = proxy.URL() }
	var mu sync.Mutex
	hosts := make([]*harness.Agent, real)
	for i := range hosts {
		hosts[i] = f.Agent(fmt.Sprintf("host-%02d", i), via)
	}
	sims, err := swarm.Enrol(t.Context(), swarm.Config{URL: f.URL, Token: f.Admin, Agents: simulated})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var background sync.WaitGroup
	background.Go(func() { sims.Run(ctx) })
	var ends tally
	var nonce atomic.Int64
	var all sync.WaitGroup
	done := make(chan struct{})
	for range clients {
		rest := f.REST(f.Admin)
		all.Go(func() {
			for n := nonce.Add(1); n <= calls; n = nonce.Add(1) {
				id := fmt.Sprintf("sim-%05d", rand.IntN(simulated))
				if n%5 == 0 { // a real command costs a hundred times as much
					mu.Lock()
					id = hosts[rand.IntN(real)].ID
					mu.Unlock()
				}
				command := fmt.Sprintf("echo $DROVER_AGENT_ID %s n%d $DROVER_CALL_ID $$ >> %s", id, n, log)
				status, res := rest.Call(id, "shell_exec", map[string]any{"command": command})
				state := res.State
				if state == "" && res.Error != nil {
					state = res.Error.Code
				}
				if ends.add(state); status == 0 || state == "" || state == "failed" {
					t.Errorf("n%d on %s: HTTP %d %+v", n, id, status, res.Error)
				}
			}
		})
	}
	background.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(300 * time.Millisecond):
			}
			k := rand.IntN(real)
			switch i % 8 {
			case 0:
				proxy.Cut()
			case 1:
				hosts[k].Rekey()
			case 2: // gone for good; another one takes its place
				f.REST(f.Admin).Do("DELETE", "/api/v1/agents/"+hosts[k].ID, "")
				hosts[k].Stop()
				next := f.Agent(fmt.Sprintf("host-%02d-%d", k, i), via)
				mu.Lock()
				hosts[k] = next
				mu.Unlock()
			default:
				hosts[k].Stop()
				hosts[k].Start()
			}
		}
	})
	all.Wait()
	close(done)
	stop()
	background.Wait()
	t.Logf("%d calls ended as %v", calls, ends.by)
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for l := range strings.Lines(string(b)) {
		w := strings.Fields(l)
		switch {
		case len(w) != 5 || w[0] != w[1]:
			t.Errorf("ran elsewhere than named: %q", l)
		case seen[w[2]]:
			t.Errorf("ran twice: %q", l)
		default:
			seen[w[2]] = true
		}
	}
	if len(seen) < calls/20 {
		t.Errorf("only %d commands ran: the storm proves little", len(seen))
	}
}

// TestSoakIdle (T-04, T-12, M-14): for ten minutes a tunnel and a GET /mcp stream, on which
// nothing happens, stay up behind a proxy that cuts what is idle for 30 s either way.
func TestSoakIdle(t *testing.T) {
	f := harness.New(t, harness.Options{})
	target := strings.TrimPrefix(f.URL, "http://")
	tunnel := fault.NewIdleProxy(t, target, 30*time.Second)
	a := f.Agent("web-01", func(c *agent.Config) { c.Server = tunnel.URL() })
	if _, res := f.REST(f.Admin).Call(a.ID, "shell_exec", map[string]any{"command": "true"}); res.State != succeeded {
		t.Fatalf("%+v", res)
	}
	conns := tunnel.Accepted()
	page := fault.NewIdleProxy(t, target, 30*time.Second)
	client := harness.Client{T: t, URL: page.URL(), Admin: f.Admin}
	stream, ended := standingStream(t, &client)
	defer stream()
	began := time.Now()
	up0, down0 := tunnel.Passed()
	_, page0 := page.Passed()
	last := time.NewTimer(10 * time.Minute)
	each := time.NewTicker(30 * time.Second)
	defer each.Stop()
	for going := true; going; {
		select {
		case <-last.C:
			going = false
		case err := <-ended:
			t.Fatalf("the GET /mcp stream ended after %s: %v", time.Since(began), err)
		case <-each.C:
			up, down := tunnel.Passed()
			_, p := page.Passed()
			if up == up0 || down == down0 || p == page0 {
				t.Errorf("after %s: in 30 s %d bytes up and %d down the tunnel, %d down the stream", time.Since(began), up-up0, down-down0, p-page0)
			}
			up0, down0, page0 = up, down, p
		}
	}
	if now := tunnel.Accepted(); now != conns {
		t.Errorf("the agent connected again: %d connections, then %d", conns, now)
	}
}

// standingStream opens a session of the older era and its GET stream; ended tells when that
// has ended.
func standingStream(t *testing.T, c *harness.Client) (stop func(), ended <-chan error) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"soak","version":"1"}}}`
	resp, _ := c.PostMCP(c.Admin, harness.Legacy, nil, body)
	id := resp.Header.Get("Mcp-Session-Id")
	c.PostMCP(c.Admin, harness.Legacy, http.Header{"Mcp-Session-Id": {id}}, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Accept": "text/event-stream", "Mcp-Session-Id": id, "Mcp-Protocol-Version": string(harness.Legacy), "Authorization": "Bearer " + c.Admin} {
		req.Header.Set(k, v)
	}
	got, err := http.DefaultClient.Do(req)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("GET /mcp: %v %+v", err, got)
	}
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		over <- errors.Join(err, errors.New("its end"))
	}()
	return cancel, over
}

// TestSoakStoppedClients (T-06): fifty clients stop reading while commands flood: the server
// grows by less than 100 MB.
func TestSoakStoppedClients(t *testing.T) {
	const clients = 50
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite})
	d.Host("web-01")
	front := fault.NewProxy(t, strings.TrimPrefix(d.URL, "http://"))
	client := harness.Client{T: t, URL: front.URL(), Admin: d.Admin}
	before := rss(t, d.Server.Cmd.Process.Pid)
	for range clients {
		stop, _ := standingStream(t, &client)
		defer stop()
	}
	for n := range clients {
		go func() { // its answers come by a stream, with progress, to a client that doesn't read
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"_meta":{"progressToken":%d},"name":"shell_exec","arguments":{"agent_id":"web-01","command":"timeout 60 yes","timeout_seconds":90}}}`, n, n)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, client.URL+"/mcp", bytes.NewReader([]byte(body)))
			if err != nil {
				return
			}
			for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25", "Authorization": "Bearer " + d.Admin} {
				req.Header.Set(k, v)
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
	}
	began := time.Now()
	harness.Eventually(t, time.Minute, "the calls have begun", func() bool { return time.Since(began) > 5*time.Second })
	front.Freeze()
	most := before
	harness.Eventually(t, 3*time.Minute, "the flood is over", func() bool {
		most = max(most, rss(t, d.Server.Cmd.Process.Pid))
		return time.Since(began) > 75*time.Second
	})
	t.Logf("server: %d MB before, at most %d MB meanwhile", before>>20, most>>20)
	if most-before > 100<<20 {
		t.Errorf("the server grew by %d MB", (most-before)>>20)
	}
	if _, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != succeeded {
		t.Errorf("the agent afterwards: %+v %+v", res, res.Error)
	}
}

// rss is a process's resident memory, in bytes.
func rss(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// TestSoakCuts (T-09): a thousand calls whose connection is cut while they run; afterwards
// there are hardly more goroutines than before, of server and agent together.
func TestSoakCuts(t *testing.T) {
	const rounds = 1000
	f := harness.New(t, harness.Options{})
	proxy := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	a := f.Agent("web-01", func(c *agent.Config) { c.Server = proxy.URL() })
	round := func() {
		begun := filepath.Join(t.TempDir(), "begun")
		ended := make(chan harness.CallResult, 1)
		go func() {
			_, res := f.REST(f.Admin).Call(a.ID, "shell_exec", map[string]any{"command": "echo > " + begun + "; sleep 0.2"})
			ended <- res
		}()
		harness.Eventually(t, time.Minute, "it runs", func() bool { _, err := os.Stat(begun); return err == nil })
		proxy.Cut()
		a.Stop() // and its back-off begins anew
		a.Start()
		if res := <-ended; res.State == "failed" || res.State == notStarted {
			t.Errorf("the call ended as %s %+v", res.State, res.Error)
		}
		a.WaitOnline()
	}
	round()
	before := runtime.NumGoroutine()
	for range rounds {
		round()
	}
	harness.Eventually(t, time.Minute, "goroutines are as few as before", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() < before+20
	})
	t.Logf("%d goroutines before, %d after %d cuts", before, runtime.NumGoroutine(), rounds)
}

// TestSoakLongCommand (M-07): a command of 150 s, with a progress token and without one, in
// both eras: with one, progress comes at least every 15 s and then the result; without, a
// handle within 55 s, and the result by call_result. It runs once.
func TestSoakLongCommand(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	for _, era := range harness.Eras() {
		for _, token := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/progress=%t", era, token), func(t *testing.T) {
				t.Parallel()
				longCommand(t, f, era, token)
			})
		}
	}
}

func longCommand(t *testing.T, f *harness.Fleet, era harness.Era, token bool) {
	log := filepath.Join(t.TempDir(), "log")
	var mu sync.Mutex
	last, widest := time.Now(), time.Duration(0)
	session := f.MCP(f.Admin, era, &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) {
		mu.Lock()
		defer mu.Unlock()
		widest, last = max(widest, time.Since(last)), time.Now()
	}})
	p := &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"agent_id": "web-01", "timeout_seconds": 300,
		"command": "echo ran >> " + log + "; for i in $(seq 150); do echo line $i; sleep 1; done; echo the end"}}
	if token {
		p.Meta = mcp.Meta{"progressToken": "p"}
	}
	began := time.Now()
	res, err := session.CallTool(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	for polls := 0; !strings.Contains(textOf(res), "the end"); polls++ {
		if token || polls > 10 || res.IsError {
			t.Fatalf("after %s: %s", time.Since(began), textOf(res))
		}
		meta, _ := json.Marshal(res.Meta["io.github.drover-fleet/call"])
		var call struct {
			ID string `json:"call_id"`
		}
		if json.Unmarshal(meta, &call) != nil || call.ID == "" {
			t.Fatalf("no handle: %s", textOf(res))
		}
		if res, err = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "call_result", Arguments: map[string]any{"call_id": call.ID, "wait_seconds": 45}}); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("first answer after %s, the result after %s, the widest gap of progress %s", took.Round(time.Second), time.Since(began).Round(time.Second), widest.Round(time.Second))
	if token && widest > 20*time.Second || !token && took > 55*time.Second {
		t.Error("too late")
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != "ran\n" {
		t.Errorf("it ran as %q, %v", b, err)
	}
}

func textOf(r *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}
