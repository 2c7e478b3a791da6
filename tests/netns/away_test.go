//go:build linux

package netns

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestStoppedAgent (T-02): an agent process that is stopped, as one on a laptop that sleeps,
// is offline within two intervals; calls fail at once then; it's back within seconds of
// going on, as the same agent.
func TestStoppedAgent(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	f := harness.New(t, harness.Options{KeepAlive: interval})
	a := named(t, f, "host-a")
	p := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	for round := range 2 {
		began := time.Now()
		stop(t, p)
		f.WaitState("web-01", "offline")
		if d := time.Since(began); d < interval/2 || d > 2*interval+5*time.Second {
			t.Errorf("round %d: offline after %s, want at most two intervals of %s and a little", round, d, interval)
		}
		began = time.Now()
		if got := hostnames(f, "web-01", 3); got["error offline"] != 3 {
			t.Errorf("round %d: calls ended with %v", round, got)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("round %d: three calls to a dead tunnel took %s", round, d)
		}
		<-time.After(7 * time.Second) // long enough to be noticed as sleep
		began = time.Now()
		signal(t, p, syscall.SIGCONT)
		f.WaitState("web-01", "online")
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("round %d: back after %s", round, d)
		}
		if got := hostnames(f, "web-01", 3); got["host-a"] != 3 {
			t.Errorf("round %d: calls ended with %v", round, got)
		}
	}
	if v, _ := view(f, "web-01"); v.Notice != "" {
		t.Errorf("it's taken for a copy of itself: %+v", v)
	}
}

// stop stops a process until the test ends, or SIGCONT.
func stop(t *testing.T, p *harness.Process) {
	t.Helper()
	signal(t, p, syscall.SIGSTOP)
	t.Cleanup(func() { _ = p.Cmd.Process.Signal(syscall.SIGCONT) })
}

func signal(t *testing.T, p *harness.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestHalfOpen (T-02): the cable is pulled, so that neither side hears that the other is
// gone. Both find out within two intervals, and the agent is back soon after it's plugged
// in again.
func TestHalfOpen(t *testing.T) {
	const interval = time.Second
	f := harness.New(t, harness.Options{KeepAlive: interval})
	a, iface := network(t, f, "host-a")
	p := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	began := time.Now()
	ip(t, "-n", a.ns, "link", "set", iface, "down")
	f.WaitState("web-01", "offline")
	says(t, p, "no sign of life from the peer", 1)
	if d := time.Since(began); d > 2*interval+5*time.Second {
		t.Errorf("found out after %s, want at most two intervals of %s and a little", d, interval)
	}
	ip(t, "-n", a.ns, "link", "set", iface, "up")
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 3); got["host-a"] != 3 {
		t.Errorf("calls ended with %v", got)
	}
}

// TestHostThatChanges: an agent is its stored key. Another MAC address, another
// hostname and another interface make no other agent: the same id, one entry, its history.
func TestHostThatChanges(t *testing.T) {
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, iface := network(t, f, "host-a")
	p := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 2); got["host-a"] != 2 {
		t.Fatalf("calls ended with %v", got)
	}
	before := len(f.AllRecords())
	p.Stop()
	f.WaitState("web-01", "offline")
	ip(t, "-n", a.ns, "link", "set", iface, "address", "02:00:00:00:be:ef")
	ip(t, "-n", a.ns, "link", "add", "wg0", "type", "veth", "peer", "name", "wg1")
	a.name = "renamed"
	a.enter[len(a.enter)-1] = a.name
	p = a.run(t, "")
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 2); got["renamed"] != 2 {
		t.Errorf("calls ended with %v", got)
	}
	v, _ := view(f, "web-01")
	if v.Hostname != "renamed" || v.Notice != "" {
		t.Errorf("an operator sees %+v", v)
	}
	if after := len(f.AllRecords()); after <= before {
		t.Errorf("%d rows of the record, %d before", after, before)
	}
	var list struct {
		Agents []agentView `json:"agents"`
	}
	if f.REST(f.Admin).JSON("GET", "/api/v1/agents", nil, &list); len(list.Agents) != 1 {
		t.Errorf("agents: %+v", list.Agents)
	}
	if strings.Contains(string(p.Log()), "refuses") {
		t.Errorf("it was refused:\n%s", p.Log())
	}
}
