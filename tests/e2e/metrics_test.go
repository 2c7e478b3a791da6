package e2e

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/tests/harness"
)

// metrics returns the page's numbers by name and labels, and Drover's names of families.
func metrics(t *testing.T, d *harness.Deployment) (values map[string]string, names []string) {
	t.Helper()
	status, page := d.REST(d.Admin).Do("GET", "/metrics", "")
	if status != 200 {
		t.Fatalf("HTTP %d", status)
	}
	values = map[string]string{}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if f := strings.Fields(line); len(f) > 2 && f[1] == "TYPE" && strings.HasPrefix(f[2], "drover_") {
			names = append(names, f[2])
		} else if i := strings.LastIndexByte(line, ' '); i > 0 && !strings.HasPrefix(line, "#") {
			values[line[:i]] = line[i+1:]
		}
	}
	slices.Sort(names)
	return values, names
}

// TestMetricsAcrossReplicas: both ends of a hop count it, and docs/deploy.md lists exactly the
// numbers that there are.
func TestMetricsAcrossReplicas(t *testing.T) {
	a, b := replicas(t)
	a.Host("web-01")
	b.WaitState("web-01", "online")
	for range 2 {
		postCall(t, b, nil, "web-01", "sleep 0.05")
	}
	postCall(t, a, nil, "web-01", "true")
	if status, _ := b.REST(b.Admin).Call("no-such", "shell_exec", map[string]any{"command": "true"}); status != 404 {
		t.Errorf("HTTP %d", status)
	}
	at, names := metrics(t, b)
	holder, _ := metrics(t, a)
	for _, c := range []struct {
		of         map[string]string
		name, want string
	}{
		{at, `drover_calls_routed_total{route="remote"}`, "2"}, {at, `drover_calls_routed_total{route="local"}`, "0"}, {at, "drover_hop_seconds_count", "2"},
		{at, "drover_cluster_hops_total", "2"}, {at, "drover_cluster_served_total", "0"}, {at, "drover_cluster_calls_out", "0"}, {at, "drover_cluster_agents", "1"},
		{at, "drover_cluster_connected", "1"}, {at, "drover_cluster_replicas", "1"}, {at, "drover_agents_online", "0"}, {at, "drover_cluster_pipes", "1"},
		{at, `drover_refusals_total{code="unknown_agent",edge="rest"}`, "1"}, {at, `drover_cluster_refused_total{why="forged"}`, "0"},
		{holder, `drover_calls_routed_total{route="local"}`, "1"}, {holder, "drover_cluster_served_total", "2"}, {holder, "drover_cluster_hops_total", "0"},
		{holder, "drover_agents_online", "1"}, {holder, "drover_cluster_agents", "0"}, {holder, "drover_hop_seconds_count", "0"},
	} {
		if c.of[c.name] != c.want {
			t.Errorf("%s is %q, want %s", c.name, c.of[c.name], c.want)
		}
	}
	docs, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for row := range strings.Lines(string(docs)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(row, "| "), " |"); ok && strings.HasPrefix(row, "| `drover_") {
			for _, name := range regexp.MustCompile("`(drover_[a-z_]+)`").FindAllStringSubmatch(first, -1) {
				listed[name[1]] = true
			}
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(listed)), names); d != "" {
		t.Errorf("what docs/deploy.md lists (-) isn't what there is (+): %s", d)
	}
}
