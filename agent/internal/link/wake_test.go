package link

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// wall is a time of day that can be set.
type wall struct {
	mu  sync.Mutex
	off time.Duration
}

func (w *wall) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return wallClock().Add(w.off)
}

func (w *wall) jump(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.off += d
}

// use makes a link go by the clock, and look at it often.
func (w *wall) use(l *Link) { l.wakes.wall, l.wakes.every = w.now, 10*time.Millisecond }

// serve runs the server's side of a connection; what comes in is heard.
func serve(t *testing.T, a accepted, version int) (s *mux.Session, heard chan any) {
	heard = make(chan any, 64)
	s = mux.New(a.conn, mux.Config{Version: version, Notify: func(f any) { heard <- f }})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(context.Background()) }()
	t.Cleanup(func() { s.Close(0, ""); <-done })
	return s, heard
}

// A host that was asleep finds its connection dead within seconds, long before the two
// intervals of the keep-alive, and is back at once; one whose connection lives keeps it.
func TestWakeFindsADeadConnection(t *testing.T) {
	t.Parallel()
	s, url := newServer(t)
	var clock wall
	var logs logBuffer
	opt := options(s, url, &memory{key: testKey()}, &logs)
	opt.MinBackoff, opt.MaxBackoff = time.Hour, time.Hour // but for who woke
	start(t, opt, clock.use)
	first := <-s.got // nobody reads it: dead
	defer func() { _ = first.conn.Close(0, "") }()
	began := time.Now()
	clock.jump(time.Hour)
	second := <-s.got
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("back after %s", took)
	}
	session, heard := serve(t, second, 1)
	<-heard // the epoch
	clock.jump(time.Hour)
	select {
	case <-s.got:
		t.Error("a connection that lives was given up")
	case <-session.Done():
		t.Error("a connection that lives was ended")
	case <-time.After(wakeWait + time.Second):
	}
}

// answering is a transport that answers everything in the same way.
type answering struct {
	header http.Header
	mu     sync.Mutex
	times  []time.Time
}

func (a *answering) RoundTrip(*http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, time.Now())
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: a.header, Body: io.NopCloser(strings.NewReader("later"))}, nil
}

// A host that was asleep doesn't wait out the pause that it was in, but for what the server
// asked for: that runs by the time of day.
func TestWakeShortensAPause(t *testing.T) {
	for name, c := range map[string]struct {
		slept, low, high time.Duration
	}{
		"shorter than it was asked to wait": {20 * time.Minute, 40 * time.Minute, 52 * time.Minute},
		"longer":                            {2 * time.Hour, 0, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var clock wall
				rt := &answering{header: http.Header{"Retry-After": {"3600"}}}
				opt := options(nil, "http://127.0.0.1:1", &memory{key: testKey()}, &logBuffer{})
				opt.MinBackoff, opt.MaxBackoff, opt.Client = 0, 0, &http.Client{Transport: rt}
				l := New(opt)
				clock.use(l)
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
				defer cancel()
				asleep := time.AfterFunc(time.Second, func() { clock.jump(c.slept) })
				defer asleep.Stop()
				if err := l.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if len(rt.times) < 2 {
					t.Fatal("it never came back")
				}
				if d := rt.times[1].Sub(rt.times[0]); d < c.low || d > c.high {
					t.Errorf("it came back after %s, want %s to %s", d, c.low, c.high)
				}
			})
		})
	}
}

// stuck is a transport that never answers.
type stuck struct{ n chan struct{} }

func (s stuck) RoundTrip(r *http.Request) (*http.Response, error) {
	s.n <- struct{}{}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// An attempt that was under way when the host fell asleep is given up.
func TestWakeEndsAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clock wall
		rt := stuck{make(chan struct{}, 2)}
		opt := options(nil, "http://127.0.0.1:1", &memory{key: testKey()}, &logBuffer{})
		opt.MinBackoff, opt.MaxBackoff, opt.Client = 0, 0, &http.Client{Transport: rt}
		start(t, opt, clock.use)
		<-rt.n
		synctest.Wait() // the clocks are being compared
		began := time.Now()
		clock.jump(time.Hour)
		<-rt.n
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the next one began after %s", took)
		}
	})
}

// What a version 2 server is told after the welcome: the epoch, the journal, and how the
// clocks differ; the agent is never kept out by that. A version 1 server would take the
// last two for violations.
func TestClocksThatDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		version int
		ahead   time.Duration
		want    int64
	}{
		"ten minutes behind": {2, -10 * time.Minute, -600_000},
		"a year ahead":       {2, 365 * 24 * time.Hour, 365 * 24 * 3600_000},
		"right":              {2, 0, 0},
		"version 1":          {1, 10 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, url := newServer(t)
			s.version = c.version
			var clock wall
			clock.jump(c.ahead)
			var logs logBuffer
			opt := options(s, url, &memory{key: testKey()}, &logs)
			opt.Boot = "journal-1"
			start(t, opt, clock.use)
			session, heard := serve(t, <-s.got, c.version)
			// A version 2 agent's word may come after its pong; of a version 1 agent there's none.
			if err := session.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			var boot string
			var facts *protocol.FactsUpdate
			for len(heard) > 0 || c.version >= 2 && (boot == "" || facts == nil) {
				select {
				case f := <-heard:
					switch f := f.(type) {
					case *protocol.Resume:
						boot = f.Boot
					case *protocol.FactsUpdate:
						facts = f
					}
				case <-time.After(20 * time.Second):
					t.Fatalf("told %q and %+v", boot, facts)
				}
			}
			if c.version < 2 {
				if boot != "" || facts != nil {
					t.Fatalf("a version 1 server was told %q and %+v", boot, facts)
				}
				return
			}
			if boot != "journal-1" || facts == nil {
				t.Fatalf("told %q and %+v", boot, facts)
			}
			if d := facts.Facts.ClockAheadMS - c.want; d < -30_000 || d > 30_000 || facts.Facts.ClockAheadMS%1000 != 0 {
				t.Errorf("%d ms ahead, want about %d", facts.Facts.ClockAheadMS, c.want)
			}
			if facts.Facts.Hostname != "h" || len(facts.Capabilities) != 1 {
				t.Errorf("facts %+v", facts)
			}
			if warned := strings.Contains(logs.String(), "clock"); warned != (c.ahead != 0) {
				t.Errorf("warned %t: %s", warned, logs.String())
			}
		})
	}
}

// Something cuts every connection early: one warning that says so, and the pauses grow as if
// there had been no connection, however long it was up by the usual measure.
func TestCutAgainAndAgain(t *testing.T) {
	t.Parallel()
	s, url := newServer(t)
	s.keepAlive = time.Second
	var logs logBuffer
	opt := options(s, url, &memory{key: testKey()}, &logs)
	opt.MinBackoff, opt.MaxBackoff = time.Millisecond, 50*time.Millisecond
	start(t, opt)
	for range 12 {
		_ = (<-s.got).conn.Close(0, "")
	}
	text := logs.String()
	if n := strings.Count(text, "cut again and again"); n != 1 || strings.Count(text, "level=WARN") != 2 {
		t.Errorf("%d warnings of it: %s", n, text)
	}
	l := New(opt)
	early := protocol.Ended{Up: 2 * protocol.Settled}
	for i, want := range []time.Duration{early.Up, 0, 0} {
		if got := l.judge(early, time.Minute).Up; got != want {
			t.Errorf("cut %d counts as %s, want %s", i, got, want)
		}
	}
	for name, steady := range map[string]protocol.Ended{"a long one": {Up: 3 * time.Minute}, "one that was told": {Up: early.Up, Told: true}, "sleep": {Up: early.Up, Woke: true}} {
		l.judge(steady, time.Minute)
		if got := l.judge(early, time.Minute).Up; got != early.Up {
			t.Errorf("after %s a cut counts as %s", name, got)
		}
	}
}
