package fault_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// modelChecks times modelWorlds is how many schedules TestModel runs: 60, in half a minute.
const (
	modelChecks = 3
	modelWorlds = 20 // at a time: they mostly wait
)

// TestModel runs random schedules of what happens to a fleet and its calls, and holds each
// to the promises of docs/guarantees.md: no effect on another agent than named, none twice,
// one intent and one outcome each, an answered success was executed, what is said not to have
// started was not, and what was cancelled is dead.
func TestModel(t *testing.T) { model(t, modelChecks) }

// model checks that many draws of modelWorlds schedules each, which run at the same time.
func model(t *testing.T, checks int) {
	// Two runs of a schedule differ in their timing, so that a smaller one proves nothing.
	for name, value := range map[string]string{"checks": fmt.Sprint(checks), "shrinktime": "0s", "nofailfile": "true"} {
		f := flag.Lookup("rapid." + name)
		old := f.Value.String()
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(old) })
	}
	draws := 0
	var ends tally
	rapid.Check(t, func(rt *rapid.T) {
		var plans [modelWorlds][]step
		for i := range plans {
			plans[i] = rapid.SliceOfN(steps(), 6, 16).Draw(rt, fmt.Sprint("schedule ", i))
		}
		draws++
		var worlds sync.WaitGroup
		var said [modelWorlds][]string
		for i, plan := range plans {
			worlds.Go(func() { said[i] = live(t, fmt.Sprintf("%d-%d", draws, i), plan, &ends) })
		}
		worlds.Wait()
		for i, s := range said {
			if len(s) > 0 {
				rt.Errorf("schedule %d broke a promise (the seed below repeats the schedule, with -rapid.seed; the timing varies):\n%s\n  %s",
					i, describe(plans[i]), strings.Join(s, "\n  "))
			}
		}
	})
	t.Logf("%d schedules; the calls ended as %v", draws*modelWorlds, ends.by)
	for _, state := range []string{succeeded, notStarted} {
		if ends.by[state] == 0 && !t.Failed() {
			t.Errorf("no call ended as %s: the schedules prove little", state)
		}
	}
}

// tally counts how calls ended.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

func (t *tally) add(state string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[string]int{}
	}
	t.by[state]++
}

// step is one thing that happens.
type step struct {
	do   string
	host int // which of the two
	slow bool
}

// steps draws one: mostly calls, since nothing is proved without.
func steps() *rapid.Generator[step] {
	actions := []string{
		"call", "call", "call", "call", "call again", "cancel", "poll", "cut", "cut", "half-open", "reconnect",
		"server restart", "agent restart", "second connect", "re-key", "remove",
	}
	return rapid.Custom(func(rt *rapid.T) step {
		return step{rapid.SampledFrom(actions).Draw(rt, "do"), rapid.IntRange(0, 1).Draw(rt, "host"), rapid.Bool().Draw(rt, "slow")}
	})
}

func describe(plan []step) string {
	var b strings.Builder
	for _, s := range plan {
		fmt.Fprintf(&b, "  %s host-%d slow=%t\n", s.do, s.host, s.slow)
	}
	return b.String()
}

// collector is a testing.TB for one schedule: it collects what fails, in any goroutine, and
// has an end of its own.
type collector struct {
	testing.TB
	dir string

	mu   sync.Mutex
	said []string
	ends []func()
	dirs int
}

func (c *collector) Errorf(format string, args ...any) {
	said := fmt.Sprintf(format, args...)
	if strings.Contains(said, "enrol: unauthenticated (revoked)") {
		return // an agent that was re-keyed, and removed before it had used its token
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, said)
}

func (c *collector) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}

func (c *collector) Error(args ...any) { c.Errorf("%s", fmt.Sprint(args...)) }
func (c *collector) Fatal(args ...any) { c.Fatalf("%s", fmt.Sprint(args...)) }

func (c *collector) Failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.said) > 0
}

func (c *collector) Cleanup(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, f)
}

func (c *collector) TempDir() string {
	c.mu.Lock()
	c.dirs++
	dir := filepath.Join(c.dir, fmt.Sprint(c.dirs))
	c.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.Fatalf("%v", err)
	}
	return dir
}

// end runs the cleanups, the last one first, and returns what failed.
func (c *collector) end() []string {
	c.mu.Lock()
	ends := slices.Clone(c.ends)
	c.mu.Unlock()
	for _, f := range slices.Backward(ends) {
		f()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// live runs one schedule in a world of its own.
func live(t *testing.T, name string, plan []step, ends *tally) []string {
	c := &collector{TB: t, dir: filepath.Join(t.TempDir(), name)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := newWorld(c)
		for _, s := range plan {
			w.step(s)
			w.always()
		}
		w.rest()
		for _, call := range w.calls {
			if res := call.answered(); res != nil {
				ends.add(res.State)
			} else {
				ends.add("refused")
			}
		}
	}()
	<-done
	return c.end()
}

// world is a server with two hosts, each behind a proxy, and what was called there.
type world struct {
	c     *collector
	f     *harness.Fleet
	log   string // a line for each effect
	hosts [2]*hosted
	calls []*called
	all   sync.WaitGroup // clients
}

// hosted is one of the hosts.
type hosted struct {
	id      string
	agent   *harness.Agent
	proxy   *fault.Proxy
	removed bool
}

// called is one call that a client makes until it has an answer.
type called struct {
	nonce, host, key, body string
	slow                   bool

	mu  sync.Mutex
	res *harness.CallResult // nil: no answer yet
}

func (c *called) answered() *harness.CallResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.res
}

func newWorld(c *collector) *world {
	w := &world{c: c, f: harness.New(c, harness.Options{KeepAlive: 500 * time.Millisecond}), log: filepath.Join(c.TempDir(), "log")}
	for i := range w.hosts {
		h := &hosted{id: fmt.Sprint("host-", i), proxy: fault.NewProxy(c, strings.TrimPrefix(w.f.URL, "http://"))}
		h.agent = w.f.Agent(h.id, func(cfg *agent.Config) { cfg.Server = h.proxy.URL() })
		w.hosts[i] = h
	}
	return w
}

func (w *world) step(s step) {
	h := w.hosts[s.host]
	admin := w.f.REST(w.f.Admin)
	switch s.do {
	case "call":
		w.call(h, s.slow)
	case "call again":
		if n := len(w.calls); n > 0 {
			w.ask(w.calls[n-1])
		}
	case "cancel":
		if id := w.openCall(); id != "" {
			admin.Do("POST", "/api/v1/calls/"+id+"/cancel", "{}")
		}
	case "poll":
		if id := w.openCall(); id != "" {
			admin.Do("GET", "/api/v1/calls/"+id, "")
		}
	case "cut":
		h.proxy.Cut()
	case "half-open":
		h.proxy.Freeze()
	case "reconnect":
		h.proxy.Thaw()
	case "server restart":
		w.f.Restart()
	case "agent restart":
		if !h.removed {
			h.agent.Stop()
			h.agent.Start()
		}
	case "second connect":
		w.copied(h, s.slow)
	case "re-key":
		if !h.removed {
			h.agent.Rekey()
		}
	case "remove":
		if s.slow && s.host == 1 { // one in four of them: a removed host takes no more calls
			admin.Do("DELETE", "/api/v1/agents/"+h.id, "")
			h.removed = true
		}
	}
}

// call makes a call whose effect is a line with the host it ran on, the one it was meant for
// and its own id; a slow one lasts a while after it.
func (w *world) call(h *hosted, slow bool) {
	n := fmt.Sprint("n", len(w.calls))
	command := fmt.Sprintf("echo $DROVER_AGENT_ID %s %s $DROVER_CALL_ID $$ >> %s", h.id, n, w.log)
	if slow {
		command += fmt.Sprintf("; sleep 1.5; echo end of %s >> %s.ends", n, w.log)
	}
	c := &called{nonce: n, host: h.id, key: "key-" + n, slow: slow}
	queue := ""
	if len(w.calls)%2 == 0 {
		queue = `,"queue_for_seconds":15`
	}
	c.body = fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":{"command":%q},"idempotency_key":%q%s}`, c.host, command, c.key, queue)
	w.calls = append(w.calls, c)
	w.ask(c)
}

// ask is a client that tries until the call has an end. A refusal without an id isn't one:
// the host may come back.
func (w *world) ask(c *called) {
	admin := w.f.REST(w.f.Admin)
	w.all.Go(func() {
		end := time.NewTimer(patience)
		defer end.Stop()
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for {
			status, b := admin.Do("POST", "/api/v1/calls", c.body)
			res, ended := parse(status, b)
			switch {
			case ended:
				w.said(c, res)
				return
			case status == 404, status == 503 && strings.Contains(string(b), `"offline"`), status == 409:
				return // refused: it has no id and never will
			}
			select {
			case <-again.C:
			case <-end.C:
				w.c.Errorf("%s on %s has no end after %s: HTTP %d %s", c.nonce, c.host, patience, status, b)
				return
			}
		}
	})
}

// said notes an answer. Two clients of one call are told the same.
func (w *world) said(c *called, res harness.CallResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.res != nil && (c.res.CallID != res.CallID || c.res.State != res.State) {
		w.c.Errorf("%s was answered as %+v and as %+v", c.nonce, *c.res, res)
	}
	c.res = &res
}

// openCall is the id of a call that has begun and isn't answered, "" if there's none.
func (w *world) openCall() string {
	began := map[string]string{}
	for _, l := range w.lines() {
		began[l.nonce] = l.call
	}
	for _, c := range slices.Backward(w.calls) {
		if c.answered() == nil && began[c.nonce] != "" {
			return began[c.nonce]
		}
	}
	return ""
}

// copied starts a second agent on a copy of the host's state for a moment.
func (w *world) copied(h *hosted, beside bool) {
	dir := filepath.Join(w.c.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(h.agent.State)); err != nil {
		return // a file that vanishes while it's copied: no copy, then
	}
	if !beside && !h.removed {
		h.proxy.Cut()
	}
	second, err := agent.New(agent.Config{Server: w.f.URL, State: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.c.Errorf("the copy: %v", err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	_ = second.Run(ctx) // refused or not: what it does is judged by the effects
}

// line is one effect.
type line struct{ on, meant, nonce, call, pid string }

func (w *world) lines() []line {
	b, err := os.ReadFile(w.log)
	if err != nil && !os.IsNotExist(err) {
		w.c.Fatalf("%v", err)
	}
	var out []line
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if !strings.HasSuffix(l, "\n") {
			break // it's being written
		}
		if len(f) != 5 {
			w.c.Errorf("an effect without its call: %q", l)
			continue
		}
		out = append(out, line{f[0], f[1], f[2], f[3], f[4]})
	}
	return out
}

// always holds at every moment.
func (w *world) always() {
	seen := map[string]bool{}
	for _, l := range w.lines() {
		if l.on != l.meant {
			w.c.Errorf("%s was meant for %s and ran on %s", l.nonce, l.meant, l.on)
		}
		if seen[l.nonce] {
			w.c.Errorf("%s on %s ran twice", l.nonce, l.meant)
		}
		seen[l.nonce] = true
	}
}

// rest brings everything back, waits for all answers, and checks what holds then.
func (w *world) rest() {
	for _, h := range w.hosts {
		h.proxy.Thaw()
	}
	w.all.Wait()
	w.always()
	effects := map[string]line{}
	for _, l := range w.lines() {
		effects[l.nonce] = l
	}
	rows := w.settled()
	ended, _ := os.ReadFile(w.log + ".ends")
	for _, c := range w.calls {
		w.judge(c, effects[c.nonce], strings.Contains(string(ended), "end of "+c.nonce+"\n"), rows)
	}
	for id, kinds := range rows {
		if kinds["intent"] != 1 || kinds["outcome"] != 1 {
			w.c.Errorf("call %s has %v on record", id, kinds)
		}
	}
}

// settled waits until every call has its outcome, also those whose clients were turned away
// meanwhile because their agent was removed, and returns the kinds of each call's rows.
func (w *world) settled() (rows map[string]map[string]int) {
	for begin := time.Now(); ; {
		rows = map[string]map[string]int{}
		open := 0
		for _, r := range w.f.AllRecords() {
			if r.CallID == "" {
				continue
			}
			if rows[r.CallID] == nil {
				rows[r.CallID] = map[string]int{}
			}
			rows[r.CallID][r.Kind]++
		}
		for _, kinds := range rows {
			if kinds["outcome"] == 0 {
				open++
			}
		}
		if open == 0 || time.Since(begin) > 30*time.Second {
			return rows
		}
		pause := time.NewTimer(100 * time.Millisecond)
		<-pause.C
	}
}

// judge holds one call's answer against what happened.
func (w *world) judge(c *called, did line, ended bool, rows map[string]map[string]int) {
	res := c.answered()
	if res == nil {
		if did.call != "" && rows[did.call]["outcome"] != 1 {
			w.c.Errorf("%s ran as %s and has no outcome", c.nonce, did.call)
		}
		return
	}
	later, final := parse(w.f.REST(w.f.Admin).Do("GET", "/api/v1/calls/"+res.CallID, ""))
	if !final || later.State != res.State {
		w.c.Errorf("%s was answered as %s and is on record as %s", c.nonce, res.State, later.State)
	}
	switch {
	case did.call != "" && did.call != res.CallID:
		w.c.Errorf("%s is call %s and ran as %s", c.nonce, res.CallID, did.call)
	case res.State == succeeded && did.call == "":
		w.c.Errorf("%s succeeded and never ran", c.nonce)
	case (res.State == notStarted || res.State == "expired") && did.call != "":
		w.c.Errorf("%s ran and is on record as %s: %s", c.nonce, res.State, res.Error.Message)
	case res.State == succeeded && c.slow != ended:
		w.c.Errorf("%s succeeded before its end", c.nonce)
	case res.State == "failed":
		w.c.Errorf("%s is called failed, which no command of this test does: %+v", c.nonce, res.Error)
	}
	if did.pid != "" && (res.State == "cancelled" || res.State == succeeded) && processAlive(did.pid) {
		w.c.Errorf("%s is on record as %s and process %s runs", c.nonce, res.State, did.pid)
	}
}
