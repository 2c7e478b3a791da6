package fault_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// small mounts a file system of this size (as mount's option has it) until the test ends.
func small(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "mode=700,size="+size, "tmpfs", dir).CombinedOutput()
	testenv.Require(t, err == nil, fmt.Sprintf("no tmpfs can be mounted, which takes root: %v %s", err, out))
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes all of a file system's space; free gives it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{64 << 10, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	_ = f.Close()
	return func() { _ = os.Remove(f.Name()) }
}

// tries are calls whose effects are counted.
type tries struct {
	c   *harness.Client
	dir string

	mu    sync.Mutex
	calls []try
}

type try struct {
	effect string
	res    harness.CallResult
}

// once calls web-01 and returns the code of what it says.
func (a *tries) once(t *testing.T) string {
	a.mu.Lock()
	n := len(a.calls)
	a.calls = append(a.calls, try{effect: filepath.Join(a.dir, fmt.Sprint("effect-", n))})
	effect := a.calls[n].effect
	a.mu.Unlock()
	_, res := a.c.REST(a.c.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo line >> " + effect})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[n].res = res
	if res.Error != nil {
		return res.Error.Code
	}
	if res.State != succeeded {
		t.Errorf("a call is %s without an error", res.State)
	}
	return res.State
}

// judge holds each answer, and what is on record of it now, against its effect.
func (a *tries) judge(t *testing.T) {
	t.Helper()
	ends := map[string]int{}
	for _, c := range a.calls {
		b, _ := os.ReadFile(c.effect)
		ran := strings.Count(string(b), "\n")
		state := c.res.State
		if state == "" {
			state = "refused"
			if c.res.Error != nil {
				state = c.res.Error.Code
			}
		}
		if c.res.CallID != "" {
			now, final := parse(a.c.REST(a.c.Admin).Do("GET", "/api/v1/calls/"+c.res.CallID, ""))
			if state = now.State; !final || c.res.State == succeeded && state != succeeded {
				t.Errorf("a call was answered as %s and is on record as %s", c.res.State, state)
			}
		}
		ends[state]++
		if ran > 1 || state == succeeded && ran != 1 || (state == notStarted || c.res.CallID == "") && ran != 0 {
			t.Errorf("a call is %s (%+v) and ran %d times", state, c.res.Error, ran)
		}
	}
	t.Logf("%v", ends)
}

// until calls until the code is this.
func (a *tries) until(t *testing.T, what string, codes ...string) {
	t.Helper()
	harness.Eventually(t, patience, what, func() bool {
		got := a.once(t)
		for _, c := range codes {
			if got == c {
				return true
			}
		}
		return false
	})
}

// waits is a command that runs until release.
func waits(t *testing.T, c *harness.Client) (id string, release func()) {
	t.Helper()
	dir := t.TempDir()
	var res harness.CallResult
	// A server whose database is back may say once more that it's out of touch: its lock comes later.
	harness.Eventually(t, patience, "a call is taken", func() bool {
		c.REST(c.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": "web-01", "tool": "shell_exec", "wait_seconds": 1, "args": map[string]any{
			"command": "echo begun; while [ -d " + dir + " ] && [ ! -e " + dir + "/gate ]; do sleep 0.05; done; echo ended; touch " + dir + "/over"}}, &res)
		return res.CallID != ""
	})
	return res.CallID, func() {
		if err := os.WriteFile(dir+"/gate", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, patience, "the command ends", func() bool { _, err := os.Stat(dir + "/over"); return err == nil })
	}
}

// whole waits for the end of a call of waits.
func whole(t *testing.T, c *harness.Client, id string) {
	t.Helper()
	var res harness.CallResult
	harness.Eventually(t, patience, "the end of a call that ran meanwhile", func() (ended bool) {
		res, ended = parse(c.REST(c.Admin).Do("GET", "/api/v1/calls/"+id, ""))
		return ended
	})
	if res.State != succeeded || res.Stdout() != "begun\nended\n" {
		t.Errorf("%s %s %+v", res.State, res.Result, res.Error)
	}
}

// TestAFullDiskOfTheServer: while there's no room for the record nothing starts; what runs
// ends, and is recorded whole when there's room again; the server goes on by itself, and
// starts again on the same data.
func TestAFullDiskOfTheServer(t *testing.T) {
	dir := small(t, "32m")
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite, Data: dir})
	d.Host("web-01")
	a := &tries{c: &d.Client, dir: t.TempDir()}
	id, release := waits(t, &d.Client)
	free := fill(t, dir)
	a.until(t, "no room for an intent", "unavailable")
	for range 5 {
		a.once(t)
	}
	release()
	free()
	a.until(t, "calls once there's room", succeeded)
	whole(t, &d.Client, id)
	d.Server.Stop()
	d.Serve(strings.TrimPrefix(d.URL, "http://"))
	d.WaitState("web-01", "online")
	a.until(t, "calls after a restart", succeeded)
	a.judge(t)
}

// TestAFullDiskOfTheHost: while the agent has no room for its journal, it runs a call and
// tells the truth of it, or says that it didn't; it goes on by itself afterwards.
func TestAFullDiskOfTheHost(t *testing.T) {
	dir := small(t, "8m")
	f := harness.New(t, harness.Options{})
	host := f.Agent("web-01", func(c *agent.Config) { c.State = filepath.Join(dir, "state") })
	a := &tries{c: &f.Client, dir: t.TempDir()}
	id, release := waits(t, &f.Client)
	free := fill(t, dir)
	for range 50 {
		a.once(t)
	}
	_, big := f.REST(f.Admin).Call("web-01", "shell_exec", map[string]any{"command": "yes | head -c 20000000"})
	if n := len(big.Stdout()); big.State == succeeded && n == 0 {
		t.Errorf("much output on a full disk: %s, %d bytes", big.State, n)
	}
	release()
	whole(t, &f.Client, id)
	host.Stop()
	host.Start() // on the full disk
	a.once(t)
	free()
	host.Stop()
	host.Start()
	a.until(t, "calls once there's room", succeeded)
	a.judge(t)
}

// TestPostgresRestartsDuringCalls: the database crashes three times under calls. What was
// refused didn't run, what ran is recorded as it was, once; all is well by itself.
func TestPostgresRestartsDuringCalls(t *testing.T) {
	postgres := harness.NewPostgres(t)
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{DatabaseURL: postgres.Database()})
	d.Host("web-01")
	a := &tries{c: &d.Client, dir: t.TempDir()}
	over := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					a.once(t)
				}
			}
		})
	}
	for range 3 {
		id, release := waits(t, &d.Client)
		postgres.Crash()
		release()
		a.until(t, "a refusal", "unavailable")
		postgres.Start()
		a.until(t, "calls once it's back", succeeded)
		whole(t, &d.Client, id)
	}
	close(over)
	clients.Wait()
	a.judge(t)
	var ends map[string][2]int // intents and outcomes of each call
	harness.Eventually(t, patience, "an outcome of every call", func() bool {
		ends = map[string][2]int{}
		for _, r := range d.AllRecords() {
			n := ends[r.CallID]
			switch r.Kind {
			case "intent":
				n[0]++
			case "outcome":
				n[1]++
			default:
				continue
			}
			ends[r.CallID] = n
		}
		return !slices.ContainsFunc(slices.Collect(maps.Values(ends)), func(n [2]int) bool { return n[1] == 0 })
	})
	for id, n := range ends {
		if n != [2]int{1, 1} {
			t.Errorf("call %s has %d intents and %d outcomes", id, n[0], n[1])
		}
	}
	if len(ends) < 20 {
		t.Errorf("only %d calls are on record: this proves too little", len(ends))
	}
}
