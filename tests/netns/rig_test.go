//go:build linux

package netns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// host is a machine with a name of its own, and its agent's state folder.
type host struct {
	f     *harness.Fleet
	name  string   // its hostname
	state string   // the state folder
	url   string   // the server, as it's reached from there
	enter []string // what runs a program there
	ns    string   // its network, when that's its own
}

// named makes a host that has its own name and shares this machine's network.
func named(t *testing.T, f *harness.Fleet, name string) *host {
	t.Helper()
	probe := exec.CommandContext(t.Context(), "unshare", "--uts", "true")
	testenv.Require(t, probe.Run() == nil, "this user can't make namespaces: run as root, with util-linux installed")
	return &host{f: f, name: name, url: f.URL, state: filepath.Join(t.TempDir(), "state"),
		enter: []string{"unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, name}}
}

// run runs the agent with a token ("" for none).
func (h *host) run(t *testing.T, token string, flags ...string) *harness.Process {
	t.Helper()
	args := append([]string{}, h.enter...)
	args = append(args, harness.Build(t, "").Path("drover-agent"), "run", "--server", h.url, "--plaintext", "--state", h.state)
	var env []string
	if token != "" {
		env = []string{"DROVER_ENROLL_TOKEN=" + token}
	}
	return harness.Start(t, env, args[0], append(args[1:], flags...)...)
}

// copyTo makes another host's state folder a copy of this one's.
func (h *host) copyTo(t *testing.T, other *host) {
	t.Helper()
	if err := os.RemoveAll(other.state); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", h.state, other.state).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v: %s", err, out)
	}
}

// hostnames calls hostname on the agent n times and counts who answered; a call that ended
// in an error counts under the error's code.
func hostnames(f *harness.Fleet, id string, n int) map[string]int {
	f.T.Helper()
	out := map[string]int{}
	for range n {
		_, res := f.REST(f.Admin).Call(id, "shell_exec", map[string]any{"command": "hostname"})
		switch {
		case res.State == "succeeded":
			out[strings.TrimSpace(res.Stdout())]++
		case res.Error != nil:
			out["error "+res.Error.Code]++
		default:
			f.T.Errorf("a call ended as %q without an error", res.State)
		}
	}
	return out
}

// says waits until the agent's log has this n times, and fails if it's ever more.
func says(t *testing.T, p *harness.Process, what string, n int) {
	t.Helper()
	count := func() int { return strings.Count(string(p.Log()), what) }
	harness.Eventually(t, 60*time.Second, fmt.Sprintf("the agent says %q", what), func() bool { return count() >= n })
	if got := count(); got != n {
		t.Errorf("the agent says %q %d times, want %d", what, got, n)
	}
}

// agentView is what an operator sees of an agent.
type agentView struct {
	AgentID  string `json:"agent_id"`
	State    string `json:"state"`
	Notice   string `json:"notice"`
	Hostname string `json:"hostname"`
}

func view(f *harness.Fleet, id string) (v agentView, status int) {
	f.T.Helper()
	status = f.REST(f.Admin).JSON("GET", "/api/v1/agents/"+id, nil, &v)
	return v, status
}

// network makes a host with a network of its own, joined to this machine by one cable, and a
// server's address on this end of it. iface is the host's end.
func network(t *testing.T, f *harness.Fleet, name string) (h *host, iface string) {
	t.Helper()
	ns, near, far := fmt.Sprintf("drover-%d", os.Getpid()), fmt.Sprintf("dn%d", os.Getpid()), fmt.Sprintf("df%d", os.Getpid())
	probe := exec.CommandContext(t.Context(), "ip", "netns", "add", ns)
	testenv.Require(t, probe.Run() == nil, "this user can't make network namespaces: run as root, with iproute2 installed")
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() }) // the cable goes with it
	block := os.Getpid() % 16000
	here := net.IPv4(198, 18+byte(block>>13&1), byte(block>>6), byte(block<<2)+1)
	there := net.IPv4(here.To4()[0], here.To4()[1], here.To4()[2], here.To4()[3]+1)
	for _, line := range []string{
		fmt.Sprintf("link add %s type veth peer name %s netns %s", near, far, ns),
		fmt.Sprintf("addr add %s/30 dev %s", here, near),
		fmt.Sprintf("link set %s up", near),
		fmt.Sprintf("-n %s addr add %s/30 dev %s", ns, there, far),
		fmt.Sprintf("-n %s link set lo up", ns),
		fmt.Sprintf("-n %s link set %s up", ns, far),
	} {
		ip(t, strings.Fields(line)...)
	}
	f.Stop()
	f.Start(here.String() + ":0")
	return &host{f: f, name: name, url: f.URL, state: filepath.Join(t.TempDir(), "state"),
		ns: ns, enter: []string{"nsenter", "--net=/run/netns/" + ns, "unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, name}}, far
}

// ip runs the ip program.
func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}
