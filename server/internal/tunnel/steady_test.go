package tunnel_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// lines is a log that tests read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) with(word string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.SplitSeq(l.b.String(), "\n") {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}

func (l *lines) to(c *tunnel.Config) { c.Log = slog.New(slog.NewTextHandler(l, nil)) }

// say writes raw frames.
func (l *line) say(t *testing.T, frames ...string) {
	t.Helper()
	for _, f := range frames {
		if err := l.conn.Write(t.Context(), false, []byte(f)); err != nil {
			t.Fatal(err)
		}
	}
}

// hang up at the test's end.
func (r *rig) line(h *host) *line {
	r.t.Helper()
	l, refuse, err := r.dial(h)
	if err != nil {
		r.t.Fatalf("%v %+v", err, refuse)
	}
	r.t.Cleanup(func() { _ = l.conn.Close(0, "") })
	return l
}

// Silent connections hold no place for long when agents want one.
func TestSilentConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *tunnel.Config) { c.MaxHandshakes = 3 })
	h := r.enrolled("web-01")
	for range 3 {
		conn := r.open()
		defer func() { _ = conn.Close(0, "") }()
	}
	_, _, err := r.dial(h)
	var de *wsconn.DialError
	if !errors.As(err, &de) || de.Status != 503 || de.RetryAfter < 2*time.Second || de.RetryAfter > 10*time.Second {
		t.Fatalf("turned away with %v", err)
	}
	began := time.Now()
	var l *line
	eventually(t, "a place", func() bool { l, _, err = r.dial(h); return err == nil })
	_ = l.conn.Close(0, "")
	if d := time.Since(began); d > protocol.HandshakeTimeout-2*time.Second {
		t.Errorf("let in after %s: a silent connection keeps its place", d)
	}
}

// An agent's calls can be asked for once for each connection: when its journal is named, or
// after a while, or at once when its version has none.
func TestOnlineIsToldOnce(t *testing.T) {
	t.Parallel()
	told := make(chan fleet.AgentID, 16)
	r := newRig(t, func(c *tunnel.Config) {
		c.Online = func(id fleet.AgentID, generation int64) {
			if generation != 1 {
				t.Errorf("%s has generation %d", id, generation)
			}
			told <- id
		}
	})
	expect := func(want fleet.AgentID) {
		t.Helper()
		select {
		case id := <-told:
			if id != want {
				t.Fatalf("%s was told of, want %s", id, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody was told of %s", want)
		}
	}
	silent := r.line(r.enrolled("silent-01"))
	began := time.Now()
	old := r.enrolled("old-01")
	old.versions = []int{1}
	r.line(old)
	expect("old-01")
	named := r.line(r.enrolled("new-01"))
	named.say(t, `{"type":"resume","boot":"journal-1"}`, `{"type":"resume","boot":"journal-1"}`)
	expect("new-01")
	expect("silent-01")
	if d := time.Since(began); d < 4*time.Second {
		t.Errorf("the silent one's journal was waited for %s", d)
	}
	silent.say(t, `{"type":"resume","boot":"journal-2"}`, `{"type":"ping","n":1}`)
	for { // it was heard
		_, msg, err := silent.conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if kind, _ := protocol.PeekType(msg); kind == protocol.TypePong {
			break
		}
	}
	if len(told) > 0 {
		t.Errorf("%s was told twice", <-told)
	}
}

// A clock that differs is kept and shown and said once, bounds nothing, and isn't written
// again for a second more or less.
func TestClockThatDiffers(t *testing.T) {
	t.Parallel()
	var log lines
	r := newRig(t, log.to)
	facts := func(ms string) string {
		return `{"type":"facts","facts":{"hostname":"h","os":"","os_version":"","arch":"","run_as":"","agent_version":""` + ms + `},"capabilities":[]}`
	}
	h := r.enrolled("web-01")
	h.facts.Hostname, h.caps = "h", nil
	ahead := func(id fleet.AgentID) int64 { return r.db.Snapshot().Agents[id].Facts.ClockAheadMS }
	const year = 365 * 24 * 3600_000
	l := r.line(h)
	l.say(t, facts(`,"clock_ahead_ms":31536000000`))
	eventually(t, "a year", func() bool { return ahead("web-01") == year })
	l.say(t, facts(`,"clock_ahead_ms":999999999999999`))
	eventually(t, "a hundred years", func() bool { return ahead("web-01") == 100*year })
	l.say(t, facts(`,"clock_ahead_ms":-600000`))
	eventually(t, "ten minutes behind", func() bool { return ahead("web-01") == -600_000 })
	if got := log.with("clock differs"); len(got) != 1 || !strings.Contains(got[0], "ahead=8760h0m0s") || !strings.Contains(got[0], "agent_time=") || !strings.Contains(got[0], "server_time=") {
		t.Errorf("%d lines: %q", len(got), got)
	}
	_ = l.conn.Close(0, "")
	eventually(t, "offline", func() bool { online, _, _ := r.presence.State("web-01"); return !online })

	before := r.db.Snapshot().Version
	h.lastEpoch = l.welcome.Epoch
	l = r.line(h)
	l.say(t, facts(`,"clock_ahead_ms":-601000`))
	l.say(t, facts(`,"clock_ahead_ms":-600999`), facts(`,"clock_ahead_ms":-590000`))
	eventually(t, "ten seconds more", func() bool { return ahead("web-01") == -590_000 })
	if after := r.db.Snapshot().Version; after != before+1 {
		t.Errorf("version %d, then %d: a second more was written", before, after)
	}
	if len(log.with("clock differs")) != 2 {
		t.Errorf("not one line a connection: %q", log.with("clock differs"))
	}
}

// How connections end is in the log, with code and reason.
func TestEndsAreLogged(t *testing.T) {
	var log lines
	r := newRig(t, log.to, func(c *tunnel.Config) { c.KeepAlive = 200 * time.Millisecond })
	leaves := r.connect(r.enrolled("leaves-01"))
	leaves.session.Close(protocol.CloseNormal, "had enough")
	removed := r.connect(r.enrolled("removed-01"))
	if err := r.enroll.RemoveAgent(t.Context(), "pat:1", "removed-01"); err != nil {
		t.Fatal(err)
	}
	<-removed.done
	r.line(r.enrolled("silent-01"))
	for agent, want := range map[string][]string{
		"leaves-01":  {"code=1000", `reason="had enough"`},
		"removed-01": {"code=4410", "removed by an operator"},
		"silent-01":  {"no sign of life", "within=400ms"},
	} {
		eventually(t, agent+"'s end in the log", func() bool {
			for _, line := range log.with("agent=" + agent) {
				if strings.Contains(line, "agent offline") && strings.Contains(line, want[0]) && strings.Contains(line, want[1]) {
					return true
				}
			}
			return false
		})
	}
}

// An agent that speaks version 1 alone is served as before: raw frames, as the first
// version had them.
func TestVersionOneAgent(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("old-01")
	h.versions = []int{1}
	l := r.line(h)
	if l.welcome.Version != 1 {
		t.Fatalf("version %d was chosen", l.welcome.Version)
	}
	l.say(t, `{"type":"epoch","epoch":1}`)
	eventually(t, "online", func() bool { online, _, _ := r.presence.State("old-01"); return online })
	caller, ok := r.presence.Route("old-01", 1)
	if !ok {
		t.Fatal("no route")
	}
	answers := make(chan *protocol.Response, 1)
	go func() {
		defer close(answers)
		resp, err := caller.Call(t.Context(), newRequest("shell_exec", `{"a" : 1}`), mux.Exchange{})
		if err != nil {
			t.Errorf("call: %v", err)
			return
		}
		answers <- resp
	}()
	_, msg, err := l.conn.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var req protocol.Request
	if err := protocol.DecodeInto(msg, &req); err != nil || string(req.Args) != `{"a" : 1}` || req.NotAfterMS != 0 {
		t.Fatalf("%v: %s", err, msg)
	}
	l.say(t, `{"type":"response","id":"`+req.ID+`","result":{ "b":2},"took_us":1}`)
	if resp := <-answers; resp == nil || string(resp.Result) != `{ "b":2}` {
		t.Errorf("answer %+v", resp)
	}
	l.say(t, `{"type":"open","stream":2,"kind":"file","id":"`+req.ID+`","size":-1}`) // version 2's
	for err == nil {
		_, _, err = l.conn.Read(t.Context())
	}
	if ce := (*protocol.CloseError)(nil); !errors.As(err, &ce) || ce.Code != protocol.CloseViolation {
		t.Errorf("a stream that version 1 doesn't have: %v", err)
	}
}

// A copied state folder becomes an agent of its own by enrolling anew.
func TestCopyThatEnrolsAnew(t *testing.T) {
	r := newRig(t)
	first := r.connect(r.enrolled("web-01"))
	if _, _, err := r.enroll.Create(t.Context(), "pat:1", enroll.Spec{Agent: "web-01"}); err == nil {
		t.Error("an id in use was given out again")
	}
	second := r.connect(r.enrolled("web-02"))
	for id, o := range map[fleet.AgentID]*online{"web-01": first, "web-02": second} {
		if up, _, epoch := r.presence.State(id); !up || epoch != o.epoch {
			t.Errorf("%s: online %t, epoch %d", id, up, epoch)
		}
	}
}

// Calls go to an agent once its journal is named, so that each is on record with it; until
// then they're to wait.
func TestCallsWaitForTheJournalsName(t *testing.T) {
	r := newRig(t)
	l := r.line(r.enrolled("web-01"))
	if _, ok := r.presence.Route("web-01", 1); ok || !r.tunnel.Expected("web-01") {
		t.Errorf("it's routed to (%t) before its journal is known, or isn't expected", ok)
	}
	l.say(t, `{"type":"resume","boot":"journal.boot"}`)
	eventually(t, "online", func() bool { _, ok := r.presence.Route("web-01", 1); return ok })
	if c, _ := r.presence.Route("web-01", 1); c.Boot() != "journal.boot" || r.tunnel.Expected("web-01") {
		t.Errorf("it's routed to with the journal %q, or still expected", c.Boot())
	}
}

// Who has one valid key can't hold the places of handshakes with it: of its connections few
// wait for their turn, and another agent is let in meanwhile.
func TestOneKeyHoldsFewPlaces(t *testing.T) {
	var log lines
	r := newRig(t, log.to, func(c *tunnel.Config) { c.MaxHandshakes = 6 })
	h, other := r.enrolled("web-01"), r.enrolled("db-01")
	r.line(h) // it never answers a ping, so that each takeover takes 2 s
	stop := make(chan bool)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				if l, _, err := r.dial(h.as(fmt.Sprint("attacker ", i, n))); err == nil {
					_ = l.conn.Close(0, "")
				}
			}
		})
	}
	defer all.Wait()
	defer close(stop)
	eventually(t, "its connections are turned away", func() bool { return len(log.with("another connection of this agent")) > 0 })
	for range 3 {
		began := time.Now()
		var l *line
		eventually(t, "another agent is let in", func() (ok bool) {
			var err error
			l, _, err = r.dial(other)
			return err == nil
		})
		if d := time.Since(began); d > 4*time.Second { // 2 s, and a busy machine
			t.Errorf("let in after %s", d)
		}
		_ = l.conn.Close(0, "")
	}
	if n := len(log.with(`msg="agent refused" reason=busy`)); n > 2*quietLines {
		t.Errorf("%d lines about it", n)
	}
}

// quietLines is how many lines a minute the log has of one kind for one agent.
const quietLines = 5

// What version 1 doesn't have is a violation there.
func TestVersionOneKeepsToItself(t *testing.T) {
	for name, frame := range map[string]string{
		"a journal's name": `{"type":"resume","boot":"journal.boot"}`,
		"a clock":          `{"type":"facts","facts":{"hostname":"h","os":"linux","os_version":"","arch":"amd64","run_as":"root","agent_version":"1","clock_ahead_ms":5000},"capabilities":[]}`,
		"a file's stream":  `{"type":"open","stream":1,"kind":"file","id":"0192f000-0000-7000-8000-000000000001","size":5}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			h := r.enrolled("old-01")
			h.versions = []int{1}
			l := r.line(h)
			l.say(t, frame)
			var err error
			for err == nil {
				_, _, err = l.conn.Read(t.Context())
			}
			var ce *protocol.CloseError
			if !errors.As(err, &ce) || ce.Code != protocol.CloseViolation {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}
