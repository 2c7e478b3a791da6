package proxy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// TestCompose runs what docker-compose.yml puts together, without an engine: two replicas on
// one PostgreSQL and one NATS, nginx with the configuration in that file, and the agent with
// its command line, through nginx. A call goes through when either replica is gone.
func TestCompose(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	testenv.Require(t, err == nil, "there's no nginx: install Debian's nginx-light")
	file, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t), "--public-url", "http://localhost:7400"}})
	b := a.Beside()
	address := freeAddress(t)
	runNginx(t, nginx, t.TempDir(), composeNginx(t, string(file), map[string]string{
		"server-1:7400": strings.TrimPrefix(a.URL, "http://"), "server-2:7400": strings.TrimPrefix(b.URL, "http://"), "listen 7400": "listen " + address}))
	front := harness.Client{T: t, Admin: a.Admin, URL: "http://" + address}
	harness.Eventually(t, 20*time.Second, "nginx serves", func() bool {
		status, _ := front.REST(front.Admin).Do("GET", "/readyz", "")
		return status == 200
	})
	if status, _ := front.REST(front.Admin).Do("GET", "/metrics", ""); status != 403 {
		t.Errorf("/metrics through nginx: HTTP %d", status)
	}

	state := filepath.Join(t.TempDir(), "state")
	args := composeCommand(t, string(file), map[string]string{"http://nginx:7400": front.URL, "/var/lib/drover-agent": state})
	token := a.Run("enroll", "create", "--agent-id", "demo")
	harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + token}, a.Programs.Path("drover-agent"), args...)
	front.WaitState("demo", "online")
	call := func(when string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, "a call "+when, func() bool {
			var res harness.CallResult
			status := front.REST(front.Admin).JSON("POST", "/api/v1/calls", map[string]any{
				"agent_id": "demo", "tool": "shell_exec", "args": map[string]any{"command": "echo $DROVER_AGENT_ID"}}, &res)
			return status == 200 && res.State == "succeeded" && res.Stdout() == "demo\n"
		})
	}
	call("with both replicas")
	a.Server.Stop()
	call("when the first has stopped")
	a.Serve(strings.TrimPrefix(a.URL, "http://"))
	b.Server.Stop()
	call("when the second has")
}

// TestComposeIsAsDocumented: the file's nginx does to requests what docs/deploy.md says for
// several replicas, which tests/cluster tries with restarts and under load.
func TestComposeIsAsDocumented(t *testing.T) {
	var texts []string
	for _, name := range []string{"../../docs/deploy.md", "../../docker-compose.yml"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	_, doc, _ := strings.Cut(texts[0], "```nginx\nupstream drover")
	doc, _, _ = strings.Cut(doc, "```")
	file := composeNginx(t, texts[1], nil)
	for _, block := range []string{"upstream drover {", "location / {"} {
		want, got := directives(t, "upstream drover"+doc, block), directives(t, file, block)
		if !slices.Equal(want, got) {
			t.Errorf("%s\nin docs/deploy.md:\n%s\nin docker-compose.yml:\n%s", block, strings.Join(want, "\n"), strings.Join(got, "\n"))
		}
	}
}

// address is a replica's in an upstream block.
var address = regexp.MustCompile(`^server \S+:7400`)

// directives are the lines of one block, each once, without comments and addresses.
func directives(t *testing.T, conf, block string) (out []string) {
	t.Helper()
	_, rest, ok := strings.Cut(conf, block)
	rest, _, closed := strings.Cut(rest, "}")
	if !ok || !closed {
		t.Fatalf("no block %q in:\n%s", block, conf)
	}
	for line := range strings.Lines(rest) {
		line = address.ReplaceAllString(strings.TrimSpace(line), "server ADDRESS:7400")
		if line != "" && line[0] != '#' && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

// composeNginx is nginx' configuration as the file has it, at other addresses.
func composeNginx(t *testing.T, file string, changes map[string]string) string {
	t.Helper()
	_, block, ok := strings.Cut(file, "    content: |\n")
	if !ok {
		t.Fatal("docker-compose.yml has no configuration of nginx")
	}
	block = strings.ReplaceAll(strings.ReplaceAll(block, "$$", "$"), "\n      ", "\n")
	for old, now := range changes {
		if strings.Count(block, old) != 1 {
			t.Fatalf("the configuration doesn't have %q once:\n%s", old, block)
		}
		block = strings.Replace(block, old, now, 1)
	}
	return block
}

// composeCommand is the agent's command line.
func composeCommand(t *testing.T, file string, changes map[string]string) []string {
	t.Helper()
	_, agent, _ := strings.Cut(file, "\n  agent:\n")
	line := regexp.MustCompile(`(?m)^    command: (\[.*\])$`).FindStringSubmatch(agent)
	var args []string
	if line == nil || json.Unmarshal([]byte(line[1]), &args) != nil {
		t.Fatal("docker-compose.yml has no command for the agent")
	}
	for old, now := range changes {
		found := false
		for i, v := range args {
			if v == old {
				args[i], found = now, true
			}
		}
		if !found {
			t.Fatalf("the agent's command has no %q: %q", old, args)
		}
	}
	return args
}
