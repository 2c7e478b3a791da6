//go:build linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// newsWithin is how soon a client hears of a change that another replica made.
const newsWithin = 5 * time.Second

// listener is a client whose tool list is kept up to date by its server.
type listener struct {
	*mcp.ClientSession
	changed chan struct{}
}

func listen(d *harness.Deployment, token string) listener {
	changed := make(chan struct{}, 64)
	return listener{d.MCP(token, harness.Modern, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }}), changed}
}

// hears waits for the news, and checks whether the list has PowerShell then.
func (l listener) hears(t *testing.T, what string, powershell bool) {
	t.Helper()
	late := time.NewTimer(newsWithin)
	defer late.Stop()
	for {
		select {
		case <-l.changed:
		case <-late.C:
			t.Fatalf("no list_changed within %s: %s", newsWithin, what)
		}
		res, err := l.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		has := false
		for _, tool := range res.Tools {
			has = has || tool.Name == "powershell_exec"
		}
		if has == powershell {
			return
		}
	}
}

// TestListsChangeOnEveryReplica (M-12): when an agent connects to one replica, or its labels
// change there, clients of every replica are told within five seconds that their tool lists
// have changed. Until an agent of its grant has said what it offers, a client's list has
// every granted tool; this host has no PowerShell.
func TestListsChangeOnEveryReplica(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	token, _ := a.PAT("web", "role=web", "all", false)
	harness.Eventually(t, newsWithin, "the token counts on the other replica", func() bool {
		status, _ := b.REST(token).Do("GET", "/api/v1/agents", "")
		return status == 200
	})
	all := []listener{listen(a, a.Admin), listen(b, a.Admin)}
	web := []listener{listen(a, token), listen(b, token)}
	a.Host("web-01")
	for i, l := range all {
		l.hears(t, fmt.Sprint("an agent connects; replica ", i), false)
	}
	label := func(labels string) {
		t.Helper()
		if status, body := a.REST(a.Admin).Do("PATCH", "/api/v1/agents/web-01", `{"labels":`+labels+`}`); status/100 != 2 {
			t.Fatalf("labels: HTTP %d %s", status, body)
		}
	}
	label(`{"role":"web"}`)
	for i, l := range web {
		l.hears(t, fmt.Sprint("a label brings an agent into a grant; replica ", i), false)
	}
	label(`{}`)
	for i, l := range web {
		l.hears(t, fmt.Sprint("a label takes it out again; replica ", i), true)
	}
}

// TestNoSessionIsLost (M-05, M-06): a client of an older era keeps the id of a session from
// before, asks two replicas in turn, and one of them is restarted meanwhile. It never has to
// begin again, and is never told that there's no such session.
func TestNoSessionIsLost(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	both := []*harness.Deployment{a, b}
	a.Host("web-01")
	b.WaitState("web-01", "online")
	initialize := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`
	stale := http.Header{"Mcp-Session-Id": {"FROM-BEFORE"}}
	for i, d := range both {
		resp, body := d.PostMCP(d.Admin, harness.Legacy, stale, initialize)
		if resp.StatusCode != 200 || resp.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("initialize at %d with the id of a session that's gone: HTTP %d, a new id %q, %s", i, resp.StatusCode, resp.Header.Get("Mcp-Session-Id"), body)
		}
	}
	for i := range 100 {
		d := both[i%2]
		if i == 50 {
			b.Server.Stop()
			b.Serve(addr(b))
			b.WaitState("web-01", "online")
		}
		header := stale
		if i%4 < 2 {
			header = nil
		}
		resp, body := d.PostMCP(d.Admin, harness.Legacy, header, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"shell_exec","arguments":{"agent_id":"web-01","command":"echo turn %d"}}}`, i+2, i))
		if resp.StatusCode != 200 || !strings.Contains(string(body), fmt.Sprintf("turn %d", i)) {
			t.Fatalf("turn %d: HTTP %d %s", i, resp.StatusCode, body)
		}
	}
	for _, d := range both {
		for _, method := range []string{"GET", "DELETE"} {
			req, err := http.NewRequestWithContext(t.Context(), method, d.URL+"/mcp", nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range map[string]string{"Authorization": "Bearer " + d.Admin, "Accept": "text/event-stream", "Mcp-Session-Id": "FROM-BEFORE", "Mcp-Protocol-Version": string(harness.Legacy)} {
				req.Header.Set(k, v)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if method == "GET" && resp.StatusCode != http.StatusMethodNotAllowed || resp.StatusCode == 404 || resp.StatusCode == 400 {
				t.Errorf("%s with a session's id: HTTP %d; a client takes 405 for a server without sessions", method, resp.StatusCode)
			}
		}
	}
}

// TestRevokedOnAllReplicas (T-07): a credential that's revoked on one replica is dead on all
// within five seconds: calls are refused, streams closed, running calls ended and jobs
// stopped.
func TestRevokedOnAllReplicas(t *testing.T) {
	a, b := replicas(t)
	a.Host("web-01")
	b.WaitState("web-01", "online")
	token, pat := a.PAT("doomed", "all", "all", false)
	harness.Eventually(t, newsWithin, "the token counts on the other replica", func() bool {
		status, _ := b.REST(token).Do("GET", "/api/v1/agents", "")
		return status == 200
	})
	running := startSleeper(t, b, token, "web-01")
	file := filepath.Join(t.TempDir(), "job")
	if _, res := b.REST(token).Call("web-01", "job_start", map[string]any{"command": sleepCommand(file)}); res.State != "succeeded" {
		t.Fatalf("job_start: %s %+v", res.State, res.Error)
	}
	job := jobPID(t, file)
	stream := subscribe(t, &b.Client, token)

	if status, body := a.REST(a.Admin).Do("DELETE", "/api/v1/pats/"+pat, ""); status/100 != 2 {
		t.Fatalf("revoke: HTTP %d %s", status, body)
	}
	began := time.Now()
	harness.Eventually(t, newsWithin, "a call is refused by the other replica", func() bool {
		status, _ := b.REST(token).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"true"}}`)
		return status == 401
	})
	left := func() time.Duration { return max(newsWithin-time.Since(began), 100*time.Millisecond) }
	late := time.NewTimer(left())
	defer late.Stop()
	select {
	case <-stream:
	case <-late.C:
		t.Error("a stream is open")
	}
	running.ends(t, left())
	if got := stateOf(&a.Client, running.id); got != "cancelled" {
		t.Errorf("its call is %s", got)
	}
	dies(t, job, left())
	t.Logf("all of it took %s", time.Since(began))
}

// jobPID waits until sleepCommand runs as a job.
func jobPID(t *testing.T, file string) int {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "the job runs", func() bool { return read(t, file) != "" })
	pid, err := strconv.Atoi(strings.Fields(read(t, file))[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// subscribe opens a stream of news in the modern era; closed is closed at its end.
func subscribe(t *testing.T, d *harness.Client, token string) (closed <-chan struct{}) {
	t.Helper()
	resp := listening(t, d, token)
	if resp.StatusCode != 200 {
		t.Fatalf("subscriptions/listen: HTTP %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "acknowledged") {
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		defer func() { _ = resp.Body.Close() }()
		for lines.Scan() {
		}
	}()
	return end
}

// listening asks for a stream of news in the modern era.
func listening(t *testing.T, d *harness.Client, token string) *http.Response {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": map[string]any{
		"notifications": map[string]any{"toolsListChanged": true},
		"_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion": string(harness.Modern), "io.modelcontextprotocol/clientCapabilities": map[string]any{},
			"io.modelcontextprotocol/clientInfo": map[string]any{"name": "listener", "version": "1"},
		},
	}})
	req, err := http.NewRequestWithContext(t.Context(), "POST", d.URL+"/mcp", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Authorization": "Bearer " + token, "Accept": "application/json, text/event-stream", "Content-Type": "application/json",
		"Mcp-Protocol-Version": string(harness.Modern), "Mcp-Method": "subscriptions/listen",
	} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
