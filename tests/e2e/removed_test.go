package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// rekey registers another key under an agent's id.
func rekey(t *testing.T, c *harness.Client, agent string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err == nil {
		_, err = c.Enrol(c.EnrolToken(agent, nil, true), key, "another")
	}
	if err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, c *harness.Client, agent string) {
	t.Helper()
	if status, b := c.REST(c.Admin).Do("DELETE", "/api/v1/agents/"+agent, ""); status/100 != 2 {
		t.Fatalf("remove: %d %s", status, b)
	}
}

// TestRemovedUnderAnotherReplicasCall: a call that one replica has on the tunnel of another one
// ends as cancelled, with what it had printed, once its command is dead, when its agent is
// removed or given another key; whichever of the two is told first.
func TestRemovedUnderAnotherReplicasCall(t *testing.T) {
	t.Parallel()
	holder, caller := replicas(t)
	for agent, end := range map[string]func(string){
		"removed-here":  func(id string) { remove(t, &holder.Client, id) },
		"removed-there": func(id string) { remove(t, &caller.Client, id) },
		"rekeyed-here":  func(id string) { rekey(t, &holder.Client, id) },
	} {
		holder.Host(agent)
		caller.WaitState(agent, "online")
		file := filepath.Join(t.TempDir(), "pid")
		answer := make(chan harness.CallResult, 1)
		go func() {
			_, res := caller.REST(caller.Admin).Call(agent, "shell_exec", map[string]any{"command": "echo begun; " + sleepCommand(file), "timeout_seconds": 600})
			answer <- res
		}()
		pid, _ := sleeping(t, file)
		end(agent)
		res := (&sleeper{pid: pid, answer: answer}).ends(t, 5*time.Second)
		if res.State != "cancelled" || res.Stdout() != "begun\n" {
			t.Errorf("%s: the call ended as %s with %q: %+v", agent, res.State, res.Stdout(), res.Error)
		}
		if got := stateOf(&holder.Client, res.CallID); got != res.State {
			t.Errorf("%s: it's recorded as %s and was answered as %s", agent, got, res.State)
		}
	}
}

// TestRemovedUnderAStoppedReplicasCall: a replica that stands still, and so cancels nothing,
// doesn't keep a removed agent's command running.
func TestRemovedUnderAStoppedReplicasCall(t *testing.T) {
	t.Parallel()
	holder, caller := replicas(t)
	holder.Host("web-01")
	caller.WaitState("web-01", "online")
	file := filepath.Join(t.TempDir(), "pid")
	id := begin(t, &caller.Client, "web-01", map[string]any{"command": sleepCommand(file), "timeout_seconds": 600})
	pid, _ := sleeping(t, file)
	caller.Server.Freeze()
	remove(t, &holder.Client, "web-01")
	dies(t, pid, 5*time.Second)
	caller.Server.Thaw()
	if res := await(t, &holder.Client, id); res.State != "outcome_unknown" {
		t.Errorf("the stopped replica's call ended as %s: %+v", res.State, res.Error)
	}
}
