package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// held is a command that writes one line to a file, waits until another file is there, and
// ends with a code of its own. It doesn't outlive the test's folder.
type held struct{ effect, gate string }

func newHeld(t *testing.T) held {
	dir := t.TempDir()
	return held{filepath.Join(dir, "effect"), filepath.Join(dir, "gate")}
}

func (h held) args() map[string]any {
	return map[string]any{"timeout_seconds": 120, "command": "echo begun; echo line >> " + h.effect + "; while [ -e " + h.effect + " ] && [ ! -e " + h.gate + " ]; do sleep 0.05; done; echo ended; exit 7"}
}

func (h held) lines() int {
	b, _ := os.ReadFile(h.effect) // not there yet: none
	return strings.Count(string(b), "\n")
}

func (h held) begun(t *testing.T) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "the command's effect", func() bool { return h.lines() > 0 })
}

func (h held) release(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(h.gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// ended checks that a call of h ran once, to its end.
func (h held) ended(t *testing.T, res harness.CallResult) {
	t.Helper()
	if res.State != "succeeded" || res.Stdout() != "begun\nended\n" || !strings.Contains(string(res.Result), `"exit_code":7`) {
		t.Errorf("the call: %s %s %+v", res.State, res.Result, res.Error)
	}
	if n := h.lines(); n != 1 {
		t.Errorf("its effect is there %d times", n)
	}
}

// begin makes a call and returns its id while it runs.
func begin(t *testing.T, c *harness.Client, agent string, args map[string]any) string {
	t.Helper()
	var res harness.CallResult
	c.REST(c.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": agent, "tool": "shell_exec", "args": args, "wait_seconds": 1}, &res)
	if res.CallID == "" {
		t.Fatalf("the call has no id: %+v", res.Error)
	}
	return res.CallID
}

// await waits for a call's end.
func await(t *testing.T, c *harness.Client, id string) (res harness.CallResult) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, "the end of call "+id, func() bool {
		res = harness.CallResult{}
		c.REST(c.Admin).JSON("GET", "/api/v1/calls/"+id, nil, &res)
		switch res.State {
		case "", "queued", "dispatched", "running":
			return false
		}
		return true
	})
	return res
}

// TestACutCallComesBack: the connection is cut while a command runs, several times, and once
// more when it has ended meanwhile; the caller gets its whole result.
func TestACutCallComesBack(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: time.Minute})
	proxy := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	f.Agent("web-01", func(c *agent.Config) { c.Server = proxy.URL() })

	during, meanwhile := newHeld(t), newHeld(t)
	first := begin(t, &f.Client, "web-01", during.args())
	second := begin(t, &f.Client, "web-01", meanwhile.args())
	during.begun(t)
	meanwhile.begun(t)
	for range 3 {
		proxy.Cut()
		f.WaitState("web-01", "online")
	}
	proxy.Refuse(true)
	proxy.Cut()
	f.WaitState("web-01", "offline")
	meanwhile.release(t)
	proxy.Refuse(false)
	meanwhile.ended(t, await(t, &f.Client, second))
	during.release(t)
	during.ended(t, await(t, &f.Client, first))
}

// TestACancelReachesACallThatCameBack: a call that was resumed can be cancelled, and one that
// is cancelled while its agent is away is ended when it's back.
func TestACancelReachesACallThatCameBack(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: time.Minute})
	proxy := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	f.Agent("web-01", func(c *agent.Config) { c.Server = proxy.URL() })
	one, two := newHeld(t), newHeld(t)
	first := begin(t, &f.Client, "web-01", one.args())
	second := begin(t, &f.Client, "web-01", two.args())
	one.begun(t)
	two.begun(t)
	proxy.Refuse(true)
	proxy.Cut()
	f.WaitState("web-01", "offline")
	cancelled := make(chan harness.CallResult, 1)
	go func() {
		var res harness.CallResult
		f.REST(f.Admin).JSON("POST", "/api/v1/calls/"+first+"/cancel", map[string]any{}, &res)
		cancelled <- res
	}()
	proxy.Refuse(false)
	f.WaitState("web-01", "online")
	if res := <-cancelled; res.State != "cancelled" {
		t.Errorf("cancelled while the agent was away: %s %+v", res.State, res.Error)
	}
	var res harness.CallResult
	f.REST(f.Admin).JSON("POST", "/api/v1/calls/"+second+"/cancel", map[string]any{}, &res)
	if res.State != "cancelled" || res.Stdout() != "begun\n" {
		t.Errorf("cancelled after the agent was back: %s %s %+v", res.State, res.Result, res.Error)
	}
}

// TestAServerRestartEndsNoCall: a command goes on while the server is stopped in order, or
// killed, and started again; a poll has its whole result.
func TestAServerRestartEndsNoCall(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*harness.Process){"stopped": (*harness.Process).Stop, "killed": (*harness.Process).Kill} {
		t.Run(name, func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
			d.Host("web-01")
			d.WaitState("web-01", "online")
			during, meanwhile := newHeld(t), newHeld(t)
			first := begin(t, &d.Client, "web-01", during.args())
			second := begin(t, &d.Client, "web-01", meanwhile.args())
			during.begun(t)
			meanwhile.begun(t)
			stop(d.Server)
			meanwhile.release(t)
			d.Serve(strings.TrimPrefix(d.URL, "http://"))
			d.WaitState("web-01", "online")
			meanwhile.ended(t, await(t, &d.Client, second))
			during.release(t)
			during.ended(t, await(t, &d.Client, first))
		})
	}
}
