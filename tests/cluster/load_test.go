//go:build unix

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// answer is what a client was told of one call. Of most that fail it's told no id.
type answer struct {
	n, agent    string
	call, state string
	code        string // of a refusal or an error; "http 502" for what isn't Drover's; "gone" for no answer
	text        string
	file        bool
}

// load is clients that call all the time through the balancer.
type load struct {
	t       *testing.T
	r       *rig
	agents  []string // the real ones first
	real    int
	effects *effects
	pace    time.Duration
	dir     string // for files
	patient bool   // nobody gives up early

	next     atomic.Int64
	progress atomic.Int64
	files    atomic.Int64
	mu       sync.Mutex
	answers  []answer
}

// run makes calls with so many workers until ctx ends, and returns when all are answered.
func (l *load) run(ctx context.Context, workers int) {
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			c := &client{l: l, http: &http.Client{Transport: &http.Transport{}}}
			defer c.close()
			for ctx.Err() == nil {
				n := fmt.Sprintf("n%d", l.next.Add(1))
				agent := l.agents[rand.IntN(len(l.agents))]
				if rand.IntN(4) == 0 {
					agent = l.agents[rand.IntN(l.real)]
				}
				a := c.call(w, n, agent)
				a.n, a.agent = n, agent
				l.mu.Lock()
				l.answers = append(l.answers, a)
				l.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(l.pace/2 + rand.N(l.pace)):
				}
			}
		})
	}
	all.Wait()
}

// client is one of them: each in turn speaks REST or MCP in one of the eras.
type client struct {
	l       *load
	http    *http.Client
	session *mcp.ClientSession
}

// patience is how long a client waits; an impatient one gives up sooner.
const (
	patience   = 100 * time.Second
	impatience = 5 * time.Second
)

func (c *client) call(w int, n, agent string) answer {
	wait := patience
	if !c.l.patient && rand.IntN(3) == 0 {
		wait = impatience
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	command := c.l.effects.command(agent, n, rand.IntN(4) == 0)
	real := !strings.HasPrefix(agent, "sim-")
	switch {
	case real && rand.IntN(6) == 0:
		return c.file(ctx, n, agent)
	case w%3 == 0:
		return c.rest(ctx, agent, command)
	default:
		return c.mcp(ctx, harness.Eras()[w%2], agent, command)
	}
}

// ask sends one request and returns what was answered.
func (c *client) ask(ctx context.Context, method, path, body string) (status int, header http.Header, text []byte) {
	req, err := http.NewRequestWithContext(ctx, method, c.l.r.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil
	}
	req.Header.Set("Authorization", "Bearer "+c.l.r.Admin)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, resp.Header, nil
	}
	return resp.StatusCode, resp.Header, text
}

func (c *client) rest(ctx context.Context, agent, command string) (a answer) {
	body, _ := json.Marshal(map[string]any{"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": command}, "wait_seconds": 60})
	status, _, text := c.ask(ctx, "POST", "/api/v1/calls", string(body))
	var res harness.CallResult
	a.text = string(text)
	switch {
	case status == 0:
		a.code = "gone"
	case json.Unmarshal(text, &res) != nil:
		a.code = fmt.Sprintf("http %d", status)
	default:
		a.call, a.state = res.CallID, res.State
		if res.Error != nil {
			a.code = res.Error.Code
		} else if a.state == "succeeded" && !strings.HasPrefix(res.Stdout(), agent+"\n") {
			c.l.t.Errorf("a call to %s was answered by %q", agent, res.Stdout())
		}
	}
	return a
}

// mcp calls over a session that's made anew when the last one broke. Half of the calls to
// simulated agents ask for progress, and all to real ones.
func (c *client) mcp(ctx context.Context, era harness.Era, agent, command string) (a answer) {
	if c.session == nil {
		s, err := c.l.r.DialMCP(ctx, c.l.r.Admin, era, &mcp.ClientOptions{
			ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { c.l.progress.Add(1) },
		})
		if err != nil {
			return broken(err)
		}
		c.session = s
	}
	p := &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"agent_id": agent, "command": command}}
	if rand.IntN(2) == 0 || !strings.HasPrefix(agent, "sim-") {
		p.Meta = mcp.Meta{"progressToken": "p"}
	}
	res, err := c.session.CallTool(ctx, p)
	if err != nil {
		c.close()
		return broken(err)
	}
	var meta struct {
		CallID string `json:"call_id"`
		State  string `json:"state"`
		Code   string `json:"code"`
	}
	b, _ := json.Marshal(res.Meta["io.github.drover-fleet/call"])
	_ = json.Unmarshal(b, &meta)
	a = answer{call: meta.CallID, state: meta.State, code: meta.Code, text: res.Content[0].(*mcp.TextContent).Text}
	if a.state == "succeeded" && !strings.Contains(a.text, "\n"+agent+"\n") && !strings.HasSuffix(a.text, "\n"+agent) {
		c.l.t.Errorf("a call to %s was answered by %q", agent, a.text)
	}
	if a.code == "" && res.IsError {
		a.code = "no code"
	}
	return a
}

// broken is the answer of a session that failed: the SDK tells the HTTP status in words.
func broken(err error) answer {
	a := answer{code: "gone", text: err.Error()}
	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		if strings.Contains(err.Error(), http.StatusText(status)) {
			a.code = fmt.Sprintf("http %d", status)
		}
	}
	return a
}

func (c *client) close() {
	if c.session != nil {
		_ = c.session.Close()
		c.session = nil
	}
}

// file writes a file and, if that succeeded, reads it back.
func (c *client) file(ctx context.Context, n, agent string) (a answer) {
	path := "/api/v1/agents/" + agent + "/files?path=" + url.QueryEscape(filepath.Join(c.l.dir, agent+n))
	content := strings.Repeat(n+" of "+agent+"\n", 20_000)
	status, header, text := c.ask(ctx, "PUT", path, content)
	a = fileAnswer(status, header, text)
	a.file = true
	if status/100 != 2 {
		return a
	}
	a.state = "succeeded"
	c.l.files.Add(1)
	if status, _, got := c.ask(ctx, "GET", path, ""); status == 200 && string(got) != content {
		c.l.t.Errorf("the file %s of %s came back as %d bytes", n, agent, len(got))
	}
	return a
}

func fileAnswer(status int, header http.Header, text []byte) (a answer) {
	a.call, a.text = header.Get("Drover-Call-Id"), string(text)
	var problem struct{ Error harness.APIError }
	switch {
	case status == 0:
		a.code = "gone"
	case status/100 != 2 && json.Unmarshal(text, &problem) == nil && problem.Error.Code != "":
		a.code = problem.Error.Code
	case status/100 != 2:
		a.code = fmt.Sprintf("http %d", status)
	}
	return a
}
