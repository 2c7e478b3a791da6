//go:build linux

package netns

import (
	"crypto/ed25519"
	"crypto/rand"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestCopyBesideTheFirst (T-11): a copy of a state folder that is started while the first
// runs is refused and shown; a hundred calls meanwhile are all served by the first, though it
// connects anew once, to be told from the copy. The copy stays out while the first is
// restarted, and becomes an agent of its own by enrolling anew.
func TestCopyBesideTheFirst(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, b := named(t, f, "host-a"), named(t, f, "host-b")
	first := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	a.copyTo(t, b)

	served := make(chan map[string]int)
	go func() { served <- hostnames(f, "web-01", 100) }()
	second := b.run(t, "")
	says(t, second, "the server refuses this agent (duplicate)", 1)
	if got := <-served; got["host-a"] != 100 {
		t.Errorf("the calls were served by %v", got)
	}
	if v, _ := view(f, "web-01"); v.State != "online" || !strings.Contains(v.Notice, "a copy of its key was refused (duplicate)") || v.Hostname != "host-a" {
		t.Errorf("an operator sees %+v", v)
	}
	connects(t, first, 2)
	settled(t, f, "web-01")
	if got := hostnames(f, "web-01", 5); got["host-a"] != 5 {
		t.Errorf("after that the calls were served by %v", got)
	}

	first.Stop()
	f.WaitState("web-01", "offline")
	a.run(t, "")
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 20); got["host-a"] != 20 {
		t.Errorf("after a restart the calls were served by %v", got)
	}
	second.Stop()
	if strings.Contains(string(second.Log()), "msg=connected") {
		t.Errorf("the copy was let in:\n%s", second.Log())
	}

	token := f.EnrolToken("web-02", nil, false)
	enrol := exec.CommandContext(t.Context(), harness.Build(t, "").Path("drover-agent"), "enroll", "--replace", "--server", f.URL, "--state", b.state)
	enrol.Env = append(harness.Environ(), "DROVER_ENROLL_TOKEN="+token)
	if out, err := enrol.CombinedOutput(); err != nil || !strings.Contains(string(out), "web-02") {
		t.Fatalf("enrol anew: %v: %s", err, out)
	}
	b.run(t, "")
	f.WaitState("web-02", "online")
	for id, name := range map[string]string{"web-01": "host-a", "web-02": "host-b"} {
		if got := hostnames(f, id, 10); got[name] != 10 {
			t.Errorf("%s: served by %v", id, got)
		}
	}
}

// TestCopyThatIsStartedAgain (T-11): a copy that was once seen beside the first is started
// twenty times more, while the first is there, being restarted, killed or stopped, or the
// server is away: it's refused each time, and no call reaches it.
func TestCopyThatIsStartedAgain(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, b := named(t, f, "host-a"), named(t, f, "host-b")
	first := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	a.copyTo(t, b)
	second := b.run(t, "")
	says(t, second, "the server refuses this agent (duplicate)", 1)
	second.Stop()
	connects(t, first, 2)
	settled(t, f, "web-01")

	for i := range 20 {
		away := func() {}
		switch i % 5 {
		case 1:
			first.Stop()
			f.WaitState("web-01", "offline")
		case 2:
			first.Kill()
			f.WaitState("web-01", "offline")
		case 3:
			stop(t, first)
			f.WaitState("web-01", "offline")
			away = func() { signal(t, first, syscall.SIGCONT) }
		case 4:
			f.Restart()
		}
		second := b.run(t, "")
		says(t, second, "the server refuses this agent (quarantined)", 1)
		for host := range hostnames(f, "web-01", 3) {
			if host != "host-a" && host != "error offline" {
				t.Errorf("round %d: a call was served by %s", i, host)
			}
		}
		second.Stop()
		if strings.Contains(string(second.Log()), "msg=connected") {
			t.Fatalf("round %d: the copy was let in:\n%s", i, second.Log())
		}
		if away(); i%5 == 1 || i%5 == 2 {
			first = a.run(t, "")
		}
		f.WaitState("web-01", "online")
		if got := hostnames(f, "web-01", 3); got["host-a"] != 3 {
			t.Errorf("round %d: afterwards the calls were served by %v", i, got)
		}
		settled(t, f, "web-01")
	}
}

// TestTheFirstComesBack (T-11): a copy that is started for the first time in a moment in which
// the first one's connection is down can't be told from a restart of it. When the first is
// back, still the same process, it has its identity, and the copy is shut out for good.
func TestTheFirstComesBack(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, b := named(t, f, "host-a"), named(t, f, "host-b")
	first := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	a.copyTo(t, b)
	stop(t, first)
	f.WaitState("web-01", "offline")
	second := b.run(t, "")
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	signal(t, first, syscall.SIGCONT)
	connects(t, first, 2)
	settled(t, f, "web-01")
	if got := hostnames(f, "web-01", 20); got["host-a"] != 20 {
		t.Errorf("the calls were served by %v", got)
	}
	if v, _ := view(f, "web-01"); !strings.Contains(v.Notice, "a copy of its state was connected in its place until") {
		t.Errorf("an operator sees %+v", v)
	}
	second.Stop()
	first.Stop()
	f.WaitState("web-01", "offline")
	second = b.run(t, "")
	says(t, second, "the server refuses this agent (quarantined)", 1)
	if got := hostnames(f, "web-01", 3); got["error offline"] != 3 {
		t.Errorf("with the copy alone calls were served by %v", got)
	}
}

// connects waits until the agent has connected n times, and fails if it's ever more.
func connects(t *testing.T, p *harness.Process, n int) {
	t.Helper()
	says(t, p, "msg=connected", n)
}

// TestCopyAfterTheFirst (T-11): a copy that is started later, while the first one is away,
// is refused by what the first one has acknowledged since; the first one serves on.
func TestCopyAfterTheFirst(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, b := named(t, f, "host-a"), named(t, f, "host-b")
	first := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	a.copyTo(t, b)
	first.Stop()
	first = a.run(t, "")
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	first.Stop()
	f.WaitState("web-01", "offline")

	second := b.run(t, "")
	says(t, second, "the server refuses this agent (quarantined)", 1)
	if got := hostnames(f, "web-01", 5); got["error offline"] != 5 {
		t.Errorf("with the copy alone calls were served by %v", got)
	}
	if v, _ := view(f, "web-01"); !strings.Contains(v.Notice, "an older state was refused") {
		t.Errorf("an operator sees %+v", v)
	}
	first = a.run(t, "")
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 100); got["host-a"] != 100 {
		t.Errorf("the calls were served by %v", got)
	}
	if n := strings.Count(string(first.Log()), "msg=connected"); n != 1 || strings.Contains(string(second.Log()), "msg=connected") {
		t.Errorf("they changed places:\n%s\n%s", first.Log(), second.Log())
	}
}

// TestMovedState (T-11): a state folder that was copied from a stopped agent is a move. The
// one that is started first is the agent from then on, and what is left behind is the copy:
// whichever it is, one alone serves.
func TestMovedState(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a, b := named(t, f, "host-a"), named(t, f, "host-b")
	first := a.run(t, f.EnrolToken("web-01", nil, false))
	f.WaitState("web-01", "online")
	first.Stop()
	f.WaitState("web-01", "offline")
	a.copyTo(t, b)
	moved := b.run(t, "")
	f.WaitState("web-01", "online")
	settled(t, f, "web-01")
	left := a.run(t, "")
	harness.Eventually(t, 60*time.Second, "what was left behind is refused", func() bool {
		return strings.Contains(string(left.Log()), "the server refuses this agent")
	})
	moved.Stop()
	f.WaitState("web-01", "offline")
	again := b.run(t, "")
	f.WaitState("web-01", "online")
	if got := hostnames(f, "web-01", 20); got["host-b"] != 20 {
		t.Errorf("the calls were served by %v", got)
	}
	if strings.Contains(string(left.Log()), "msg=connected") {
		t.Errorf("both were let in:\n%s\n%s", left.Log(), again.Log())
	}
}

// settled waits until the server has noted that the agent stored its present epoch.
func settled(t *testing.T, f *harness.Fleet, id string) {
	t.Helper()
	db := f.Store()
	harness.Eventually(t, 30*time.Second, "the epoch's acknowledgement", func() bool {
		var epoch, acked int64
		err := db.QueryRowContext(t.Context(), "SELECT epoch, acked_epoch FROM agents WHERE id = $1", id).Scan(&epoch, &acked)
		return err == nil && epoch == acked
	})
}

// TestRemovedWhileAway: an agent that was removed while it was away is refused once
// when it comes back, says so once, waits for an hour or more, and isn't listed again; its
// old token makes nothing. It comes back under a new id alone.
func TestRemovedWhileAway(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	a := named(t, f, "host-a")
	token := f.EnrolToken("web-01", nil, false)
	p := a.run(t, token)
	f.WaitState("web-01", "online")
	p.Stop()
	f.WaitState("web-01", "offline")
	if status, body := f.REST(f.Admin).Do("DELETE", "/api/v1/agents/web-01", ""); status/100 != 2 {
		t.Fatalf("remove: %d %s", status, body)
	}
	p = a.run(t, token) // as a unit file would
	says(t, p, "the server refuses this agent (removed)", 1)
	line := string(p.Log())
	line = line[strings.Index(line, "(removed)"):]
	if _, wait, ok := strings.Cut(line, "retry_in="); !ok || !strings.HasPrefix(wait, "1h") {
		t.Errorf("it doesn't wait for an hour: %s", line)
	}
	if _, status := view(f, "web-01"); status != 404 {
		t.Errorf("asking for it: status %d", status)
	}
	var list struct {
		Agents []agentView `json:"agents"`
	}
	if status := f.REST(f.Admin).JSON("GET", "/api/v1/agents", nil, &list); status != 200 || len(list.Agents) != 0 {
		t.Errorf("it's listed: %d %+v", status, list)
	}
	if got := hostnames(f, "web-01", 1); got["error unknown_agent"] != 1 {
		t.Errorf("a call: %v", got)
	}
	p.Stop()
	if err := os.RemoveAll(a.state); err != nil {
		t.Fatal(err)
	}
	p = a.run(t, token)
	<-p.Gone
	if p.Err == nil || !strings.Contains(string(p.Log()), "token isn't valid") {
		t.Errorf("the old token on an empty state folder: %v: %s", p.Err, p.Log())
	}
	a.run(t, f.EnrolToken("web-02", nil, false))
	f.WaitState("web-02", "online")
	if got := hostnames(f, "web-02", 1); !maps.Equal(got, map[string]int{"host-a": 1}) {
		t.Errorf("under its new id: %v", got)
	}
}

// TestRemovedWhileCallsRun: a call that runs when its agent is removed, or given another
// key, ends as cancelled once its command is dead, and then the agent is told why it's
// disconnected.
func TestRemovedWhileCallsRun(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{KeepAlive: time.Second})
	for id, end := range map[string]func(){
		"removed-01": func() { f.REST(f.Admin).Do("DELETE", "/api/v1/agents/removed-01", "") },
		"rekeyed-01": func() {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err == nil {
				_, err = f.Enrol(f.EnrolToken("rekeyed-01", nil, true), key, "another")
			}
			if err != nil {
				t.Error(err)
			}
		},
	} {
		h := named(t, f, "host-a")
		p := h.run(t, f.EnrolToken(id, nil, false))
		f.WaitState(id, "online")
		began := filepath.Join(t.TempDir(), "began")
		ended := make(chan harness.CallResult, 1)
		go func() {
			_, res := f.REST(f.Admin).Call(id, "shell_exec", map[string]any{"command": "touch '" + began + "'; sleep 60; echo survived"})
			ended <- res
		}()
		harness.Eventually(t, 30*time.Second, "the command runs", func() bool { _, err := os.Stat(began); return err == nil })
		end()
		if res := <-ended; res.State != "cancelled" {
			t.Errorf("%s: the call ended as %s: %+v", id, res.State, res.Error)
		}
		says(t, p, "the peer closed the connection: 4410", 1)
		p.Stop()
	}
}
