package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
)

// listed is what GET /api/v1/agents answers, of what these tests look at.
type listed struct {
	Agents []struct {
		AgentID string `json:"agent_id"`
		State   string `json:"state"`
	} `json:"agents"`
	OfflineWhy string `json:"offline_why"`
}

// TestAStartingReplicaKnowsTheOthersAgents: the first answers that a replica gives are true of
// the agents of the others: they're listed as online, and called. That's so at every start.
func TestAStartingReplicaKnowsTheOthersAgents(t *testing.T) {
	t.Parallel()
	a, b := replicas(t)
	for _, id := range []string{"web-01", "web-02", "web-03"} {
		a.Host(id)
		b.WaitState(id, "online")
	}
	again := b.With(b.Programs) // b is asked where it was before, while this one starts there
	for range 5 {
		again.Server.Stop()
		started := make(chan struct{})
		go func() { defer close(started); again.Serve(addr(b)) }()
		var first listed
		harness.Eventually(t, time.Minute, "an answer", func() bool { return lists(b, &first) })
		for _, agent := range first.Agents {
			if agent.State != "online" {
				t.Errorf("the first answer says that %s is %s", agent.AgentID, agent.State)
			}
		}
		if _, res := a.REST(a.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
			t.Fatalf("through the other replica: %s %+v", res.State, res.Error)
		}
		if _, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"}); res.State != "succeeded" {
			t.Errorf("the first call: %s %+v", res.State, res.Error)
		}
		<-started
	}
}

// lists reads the list of agents; false while nobody answers with one.
func lists(d *harness.Deployment, into *listed) bool {
	req, err := http.NewRequestWithContext(d.T.Context(), "GET", d.URL+"/api/v1/agents", nil)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", "Bearer "+d.Admin)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

// TestAReplicaStartsWithoutNATS: one that starts while NATS is away says so and serves its own
// agents; those of others are offline with the reason, in calls and in every list. When NATS
// comes they're there, and no call is refused without a reason meanwhile.
func TestAReplicaStartsWithoutNATS(t *testing.T) {
	t.Parallel()
	nats := harness.NewNATS(t)
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", nats.URL}})
	a.Host("web-01")
	if saysWhy(t, a, "web-01") != 0 {
		t.Error("something is said to be wrong, and nothing is")
	}
	nats.Kill()
	b := a.Beside()
	b.Host("db-01")
	b.WaitState("db-01", "online")
	works(t, b, "db-01")
	if log := b.Server.Log(); !bytes.Contains(log, []byte(`"level":"ERROR","msg":"this replica starts without the others`)) {
		t.Errorf("its log doesn't say it:\n%s", log)
	}
	if n := saysWhy(t, b, "web-01"); n != 7 {
		t.Errorf("%d of 7 answers say why", n)
	}
	nats.Start()
	harness.Eventually(t, time.Minute, "a call across", func() bool {
		_, res := b.REST(b.Admin).Call("web-01", "shell_exec", map[string]any{"command": "true"})
		if res.State != "succeeded" && (res.Error == nil || res.Error.Code != "offline" || !strings.Contains(res.Error.Message, "other replicas")) {
			t.Fatalf("refused without the reason: %s %+v", res.State, res.Error)
		}
		return res.State == "succeeded"
	})
	works(t, a, "db-01")
	harness.Eventually(t, time.Minute, "nothing to be wrong", func() bool { return saysWhy(t, b, "web-01") == 0 })
}

// saysWhy counts the answers about agents that say why one may be shown as offline that isn't.
func saysWhy(t *testing.T, d *harness.Deployment, agent string) (n int) {
	t.Helper()
	const why = "can't reach NATS"
	for _, path := range []string{"/api/v1/agents", "/api/v1/agents/" + agent} {
		var got struct {
			OfflineWhy string `json:"offline_why"`
		}
		d.REST(d.Admin).JSON("GET", path, nil, &got)
		if strings.Contains(got.OfflineWhy, why) {
			n++
		}
	}
	session := d.MCP(d.Admin, harness.Modern, nil)
	for tool, args := range map[string]map[string]any{"list_agents": {}, "fleet_overview": {}, "select_agent": {"agent_id": agent}} {
		res, err := session.CallTool(t.Context(), params(tool, args))
		if err != nil || res.IsError {
			t.Fatalf("%s: %v %+v", tool, err, res)
		}
		if text, ok := res.Content[0].(*mcp.TextContent); ok && strings.Contains(text.Text, why) {
			n++
		}
	}
	for _, args := range [][]string{{"agents", "list"}, {"agents", "show", agent}} {
		said := d.CLI([]string{"DROVER_PAT=" + d.Admin}, "", append(args, "--url", d.URL)...)
		if said.Exit != 0 || strings.Contains(said.Stdout, why) {
			t.Errorf("drover %v: %+v", args, said)
		}
		if strings.Contains(said.Stderr, why) {
			n++
		}
	}
	return n
}

// TestWhatCanNeverReachNATS: credentials that NATS refuses, and what is no URL, end the start.
func TestWhatCanNeverReachNATS(t *testing.T) {
	t.Parallel()
	nats := harness.NewNATS(t, "--user", "drover", "--pass", "right")
	for url, want := range map[string]string{
		strings.Replace(nats.URL, "//", "//drover:wrong@", 1): "refuses this server's credentials",
		nats.URL:            "refuses this server's credentials",
		"nats://[::1":       "can't be reached",
		"nats://host:port:": "can't be reached",
	} {
		d := &harness.Deployment{Client: harness.Client{T: t}, Programs: harness.Build(t, "")}
		said := d.CLI(nil, "", "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--database-url", harness.PostgresSchema(t), "--nats-url", url)
		if said.Exit != 1 || !strings.Contains(said.Stderr, want) || strings.Contains(said.Stderr, "wrong") {
			t.Errorf("%s: %+v", url, said)
		}
	}
}
