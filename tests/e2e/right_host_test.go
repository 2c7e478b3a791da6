// Package e2e drives whole servers and agents as their users do.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// tally is what the clients of the storm saw.
type tally struct {
	succeeded, offline, unknown atomic.Int64
	ids                         sync.Map // call id → agent named
}

// TestRightHostAlways: two agents, one credential, eight MCP clients over both eras at
// once, each call naming a random host while select_agent names the other one and the
// agents go away and come back. Every command leaves a line with the host it ran on.
func TestRightHostAlways(t *testing.T) {
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) { rightHost(t, engine, 2000) })
	}
}

func rightHost(t *testing.T, engine harness.Engine, calls int) {
	f := harness.New(t, harness.Options{Engine: engine})
	hosts := []*harness.Agent{f.Agent("web-01"), f.Agent("web-02")}
	token, _ := f.PAT("shared", "all", "all", false)
	log := filepath.Join(t.TempDir(), "ran")

	const clients = 8
	var seen tally
	var wg sync.WaitGroup
	for i := range clients {
		session := f.MCP(token, harness.Eras()[i%2], nil)
		wg.Go(func() {
			for n := range calls / clients {
				id := hosts[rand.IntN(2)].ID
				other := map[string]string{"web-01": "web-02", "web-02": "web-01"}[id]
				if n%5 == 0 {
					callTool(t, session, "select_agent", map[string]any{"agent_id": other})
				}
				oneCall(t, session, id, fmt.Sprintf("c%d-%d", i, n), log, &seen)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	churn(hosts, done)

	t.Logf("%s: %d ran, %d refused as offline, %d with unknown outcome", engine, seen.succeeded.Load(), seen.offline.Load(), seen.unknown.Load())
	checkLog(t, log, seen.succeeded.Load())
	checkOutcomes(t, f, token, &seen)
}

// churn restarts the agents in turn until the storm is over.
func churn(hosts []*harness.Agent, done <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-time.After(1500 * time.Millisecond):
		}
		h := hosts[i%len(hosts)]
		h.Stop()
		h.Start()
	}
}

func oneCall(t *testing.T, s *mcp.ClientSession, id, nonce, log string, seen *tally) {
	command := fmt.Sprintf(`echo "$DROVER_AGENT_ID %s %s" >> %s; echo "$DROVER_AGENT_ID"`, id, nonce, log)
	res := callTool(t, s, "shell_exec", map[string]any{"agent_id": id, "command": command})
	if res == nil {
		return
	}
	text := textOf(res)
	meta := callMeta(res)
	if cid, _ := meta["call_id"].(string); cid != "" {
		if old, twice := seen.ids.LoadOrStore(cid, id); twice {
			t.Errorf("call id %s was given twice (%v)", cid, old)
		}
	}
	if res.IsError {
		switch code := meta["code"]; code {
		case "offline", "not_started":
			seen.offline.Add(1)
		case "outcome_unknown", "tool_failed", "cancelled":
			seen.unknown.Add(1)
		default:
			t.Errorf("%s on %s: %v: %s", nonce, id, code, text)
		}
		return
	}
	seen.succeeded.Add(1)
	first, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "["+id+" ") || strings.TrimSpace(rest) != id {
		t.Errorf("%s named %s: answered %q", nonce, id, text)
	}
}

// checkLog: no line was written on another host than named, and none twice.
func checkLog(t *testing.T, path string, atLeast int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	nonces := map[string]bool{}
	for _, line := range lines {
		w := strings.Fields(line)
		if len(w) != 3 || w[0] != w[1] {
			t.Errorf("ran elsewhere than named: %q", line)
			continue
		}
		if nonces[w[2]] {
			t.Errorf("ran twice: %q", line)
		}
		nonces[w[2]] = true
	}
	if int64(len(lines)) < atLeast {
		t.Errorf("%d succeeded, but only %d ran", atLeast, len(lines))
	}
	if atLeast < 100 {
		t.Errorf("only %d calls succeeded: the storm proves little", atLeast)
	}
}

// checkOutcomes: every call that a client knows of has ended, with one intent and one
// outcome in the record.
func checkOutcomes(t *testing.T, f *harness.Fleet, token string, seen *tally) {
	t.Helper()
	rows := map[string]map[string]int{}
	for _, r := range f.AllRecords() {
		if r.CallID != "" {
			if rows[r.CallID] == nil {
				rows[r.CallID] = map[string]int{}
			}
			rows[r.CallID][r.Kind]++
		}
	}
	n := 0
	seen.ids.Range(func(k, v any) bool {
		n++
		if got := rows[k.(string)]; got["intent"] != 1 || got["outcome"] != 1 {
			t.Errorf("call %v on %v has %v", k, v, got)
		}
		return true
	})
	if n == 0 {
		t.Error("no call had an id")
	}
	for id, got := range rows {
		if got["intent"] != 1 || got["outcome"] != 1 {
			t.Errorf("call %s has %v", id, got)
		}
	}
}

func callTool(t *testing.T, s *mcp.ClientSession, name string, args map[string]any) *mcp.CallToolResult {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return nil
	}
	return res
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

func callMeta(r *mcp.CallToolResult) map[string]any {
	b, err := json.Marshal(r.Meta["io.github.drover-fleet/call"])
	if err != nil {
		return nil
	}
	var m map[string]any
	_ = json.Unmarshal(b, &m)
	return m
}
