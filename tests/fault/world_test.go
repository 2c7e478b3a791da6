package fault_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// world is a server, or two replicas, with two hosts, each behind a proxy, and what was
// called there.
type world struct {
	c     *collector
	sites []*site
	log   string // a line for each effect
	hosts [2]*hosted
	calls []*called
	all   sync.WaitGroup // clients
}

// site is a server of a world: one in this process, or a replica that's a process.
type site struct {
	*harness.Client
	restart func()
	clients *harness.REST       // made once: a restart sets the URL anew, to the same
	replica *harness.Deployment // nil: in this process
	down    bool
	frozen  bool
}

func (s *site) address() string { return strings.TrimPrefix(s.URL, "http://") }

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
	f := harness.New(c, harness.Options{KeepAlive: 500 * time.Millisecond})
	return newWorldAt(c, &site{Client: &f.Client, restart: f.Restart})
}

func newWorldAt(c *collector, sites ...*site) *world {
	w := &world{c: c, sites: sites, log: filepath.Join(c.TempDir(), "log")}
	for _, s := range sites {
		s.clients = s.REST(s.Admin)
	}
	for i := range w.hosts {
		h := &hosted{id: fmt.Sprint("host-", i), proxy: fault.NewProxy(c, sites[i%len(sites)].address())}
		h.agent = sites[0].Client.Agent(h.id, func(cfg *agent.Config) { cfg.Server = h.proxy.URL() })
		w.hosts[i] = h
	}
	return w
}

// up is the site of this number, or another one if it's away; nil if all are.
func (w *world) up(at int) *site {
	for i := range w.sites {
		if s := w.sites[(at+i)%len(w.sites)]; !s.down && !s.frozen {
			return s
		}
	}
	return nil
}

func (w *world) step(s step) {
	h := w.hosts[s.host]
	at := w.sites[s.at%len(w.sites)]
	switch s.do {
	case "call":
		w.call(h, s)
	case "call again":
		if n := len(w.calls); n > 0 {
			w.ask(w.calls[n-1], s.at)
		}
	case "cut":
		h.proxy.Cut()
	case "half-open":
		h.proxy.Freeze()
	case "reconnect":
		h.proxy.Thaw()
	case "move":
		h.proxy.Lead(at.address())
		h.proxy.Cut()
	case "move, the old one closes late":
		h.proxy.Lead(at.address())
		h.proxy.Strand()
	case "server restart":
		at.back()
		at.restart()
	case "kill":
		at.back()
		at.replica.Server.Kill()
		at.down = true
	case "freeze":
		if !at.down {
			at.replica.Server.Freeze()
			at.frozen = true
		}
	case "back":
		at.back()
	case "agent restart":
		if !h.removed {
			h.agent.Stop()
			h.agent.Start()
		}
	default:
		if up := w.up(s.at); up != nil {
			w.administer(s, h, up)
		}
	}
}

// back brings a site back that's down or frozen.
func (s *site) back() {
	if s.frozen {
		s.replica.Server.Thaw()
	}
	if s.down {
		s.replica.Serve(s.address())
	}
	s.down, s.frozen = false, false
}

// administer is a step that a server is asked for, which answers.
func (w *world) administer(s step, h *hosted, at *site) {
	admin := at.REST(at.Admin)
	switch s.do {
	case "cancel":
		if id := w.openCall(); id != "" {
			admin.Do("POST", "/api/v1/calls/"+id+"/cancel", "{}")
		}
	case "poll":
		if id := w.openCall(); id != "" {
			admin.Do("GET", "/api/v1/calls/"+id, "")
		}
	case "second connect":
		w.copied(h, at, s.slow)
	case "re-key":
		if !h.removed {
			h.agent.RekeyAt(at.Client)
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
func (w *world) call(h *hosted, s step) {
	n := fmt.Sprint("n", len(w.calls))
	command := fmt.Sprintf("echo $DROVER_AGENT_ID %s %s $DROVER_CALL_ID $$ >> %s", h.id, n, w.log)
	if s.slow {
		command += fmt.Sprintf("; sleep 1.5; echo end of %s >> %s.ends", n, w.log)
	}
	c := &called{nonce: n, host: h.id, key: "key-" + n, slow: s.slow}
	queue := ""
	if len(w.calls)%2 == 0 {
		queue = `,"queue_for_seconds":15`
	}
	c.body = fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":{"command":%q},"idempotency_key":%q%s}`, c.host, command, c.key, queue)
	w.calls = append(w.calls, c)
	w.ask(c, s.at)
}

// ask is a client that tries until the call has an end. A refusal without an id isn't one:
// the host may come back.
func (w *world) ask(c *called, at int) {
	w.all.Go(func() {
		end := time.NewTimer(patience)
		defer end.Stop()
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for try := 0; ; try++ {
			status, b := w.sites[(at+try)%len(w.sites)].clients.Do("POST", "/api/v1/calls", c.body)
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

// said notes an answer. Two clients of one call are told the same, but for a call that never
// began: its key begins another one, and that one's end counts.
func (w *world) said(c *called, res harness.CallResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.res != nil && c.res.CallID != res.CallID && res.State == notStarted {
		return
	}
	if c.res != nil && (c.res.CallID != res.CallID || c.res.State != res.State) && (c.res.CallID == res.CallID || c.res.State != notStarted) {
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
func (w *world) copied(h *hosted, at *site, beside bool) {
	dir := filepath.Join(w.c.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(h.agent.State)); err != nil {
		return // a file that vanishes while it's copied: no copy, then
	}
	if !beside && !h.removed {
		h.proxy.Cut()
	}
	second, err := agent.New(agent.Config{Server: at.URL, State: dir}, slog.New(slog.DiscardHandler))
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
	for _, s := range w.sites {
		s.back()
	}
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
		for _, r := range w.sites[0].AllRecords() {
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
	s := w.sites[len(rows)%len(w.sites)]
	later, final := parse(s.REST(s.Admin).Do("GET", "/api/v1/calls/"+res.CallID, ""))
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
