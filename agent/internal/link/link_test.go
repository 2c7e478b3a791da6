package link

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// memory is an identity without a disk.
type memory struct {
	key ed25519.PrivateKey

	mu      sync.Mutex
	servers []ed25519.PublicKey
	epoch   int64
	broken  bool // its disk
}

func (m *memory) AgentID() string        { return "web-01" }
func (m *memory) Generation() int64      { return 1 }
func (m *memory) Key() ed25519.PublicKey { return m.key.Public().(ed25519.PublicKey) }
func (m *memory) Sign(b []byte) []byte   { return ed25519.Sign(m.key, b) }
func (m *memory) LastEpoch() int64       { m.mu.Lock(); defer m.mu.Unlock(); return m.epoch }
func (m *memory) ServerKeys() []ed25519.PublicKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]ed25519.PublicKey(nil), m.servers...)
}

func (m *memory) StoreEpoch(epoch int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return errors.New("read-only file system")
	}
	m.epoch = epoch
	return nil
}

func (m *memory) SawServerKey(used, next ed25519.PublicKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers = []ed25519.PublicKey{used}
	if next != nil {
		m.servers = append(m.servers, next)
	}
	return nil
}

// server is the other half of the handshake; each connection is handed to got.
type server struct {
	t      *testing.T
	key    ed25519.PrivateKey
	next   ed25519.PublicKey
	refuse func(n int) *protocol.Refuse // nil: welcome
	got    chan accepted
	// version is what it chooses; 1 when zero. keepAlive is what it says; 20 s when zero.
	version   int
	keepAlive time.Duration

	mu sync.Mutex
	n  int
}

type accepted struct {
	hello protocol.Hello
	conn  *wsconn.Conn
}

func newKey() ed25519.PrivateKey {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	return key
}

func newServer(t *testing.T) (*server, string) {
	s := &server{t: t, key: newKey(), got: make(chan accepted, 16)}
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	return s, ts.URL
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, err := wsconn.Accept(w, r)
	if err != nil {
		return
	}
	ctx := context.Background()
	send := func(v any) {
		b, err := protocol.Encode(v)
		if err != nil {
			s.t.Error(err)
		}
		_ = conn.Write(ctx, false, b)
	}
	_, msg, err := conn.Read(ctx)
	if err != nil {
		return
	}
	raw := bytes.Clone(msg)
	var hello protocol.Hello
	if err := protocol.DecodeInto(raw, &hello); err != nil {
		s.t.Errorf("hello: %v", err)
		return
	}
	s.mu.Lock()
	s.n++
	n, key, next := s.n, s.key, s.next
	s.mu.Unlock()
	nonce := make([]byte, protocol.NonceSize)
	agent := agentKey(s.t)
	pub := key.Public().(ed25519.PublicKey)
	send(&protocol.Challenge{Type: "challenge", Nonce: protocol.B64(nonce), Signature: protocol.B64(ed25519.Sign(key, protocol.ServerTranscript(raw, nonce, agent, pub)))})
	_, msg, err = conn.Read(ctx)
	if err != nil {
		s.got <- accepted{hello: hello} // it hung up on the challenge
		return
	}
	var auth protocol.Auth
	if err := protocol.DecodeInto(msg, &auth); err != nil {
		s.t.Errorf("auth: %v", err)
	}
	sig, _ := protocol.UnB64(auth.Signature, ed25519.SignatureSize)
	if !ed25519.Verify(agent, protocol.AgentTranscript(raw, nonce, agent, pub), sig) {
		s.t.Error("the agent's signature is wrong")
	}
	if s.refuse != nil {
		if r := s.refuse(n); r != nil {
			send(r)
			_ = conn.Close(protocol.CloseRefused, r.Reason)
			return
		}
	}
	welcome := &protocol.Welcome{Type: "welcome", Version: max(1, s.version), Epoch: int64(100 + n), KeepAliveMS: cmp.Or(s.keepAlive, 20*time.Second).Milliseconds(), ServerTime: time.Now().UnixMicro()}
	if next != nil {
		welcome.NextServerKey = protocol.B64(next)
		welcome.NextServerKeySignature = protocol.B64(ed25519.Sign(key, protocol.NextKeyTranscript(next)))
	}
	send(welcome)
	conn.Established()
	s.got <- accepted{hello, conn}
}

// agentKey is the one agent's key of this package's tests.
func agentKey(*testing.T) ed25519.PublicKey { return testKey().Public().(ed25519.PublicKey) }

func testKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32)) }

type handlerFunc func(ctx context.Context, req *protocol.Request, progress func(string)) *protocol.Response

func (f handlerFunc) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	return f(ctx, req, w.Progress)
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func options(s *server, url string, id *memory, logs *logBuffer) Options {
	if s != nil {
		id.servers = []ed25519.PublicKey{s.key.Public().(ed25519.PublicKey)}
	}
	return Options{Server: url, Identity: id, Log: slog.New(slog.NewTextHandler(logs, nil)), MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
		Facts: func() (protocol.Facts, []protocol.Capability) {
			return protocol.Facts{Hostname: "h", OS: "linux"}, []protocol.Capability{{Name: "shell_exec", Version: 1}}
		},
		Handler: handlerFunc(func(_ context.Context, r *protocol.Request, _ func(string)) *protocol.Response {
			return &protocol.Response{Result: r.Args}
		})}
}

// start runs a link to the test's end.
func start(t *testing.T, opt Options, change ...func(*Link)) {
	l := New(opt)
	for _, f := range change {
		f(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func TestConnectCallReconnect(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	id := &memory{key: testKey()}
	opt := options(s, url, id, &logs)
	up := make(chan Connection, 4)
	opt.Connected = func(c Connection) { up <- c }
	start(t, opt)
	var instance string
	for round := int64(1); round <= 3; round++ {
		a := <-s.got
		if c := <-up; c.Epoch != 100+round {
			t.Errorf("epoch %d", c.Epoch)
		}
		if a.hello.LastEpoch != max(0, 100+round-1)*min(1, round-1) {
			t.Errorf("round %d: last_epoch %d", round, a.hello.LastEpoch)
		}
		if instance == "" {
			instance = a.hello.Instance
		}
		if a.hello.Instance != instance || a.hello.AgentID != "web-01" {
			t.Errorf("hello %+v", a.hello)
		}
		epochs := make(chan int64, 1)
		session := mux.New(a.conn, mux.Config{Notify: func(f any) { epochs <- f.(*protocol.Epoch).Epoch }})
		ended := make(chan error, 1)
		go func() { ended <- session.Run(context.Background()) }()
		if e := <-epochs; e != 100+round {
			t.Errorf("acknowledged %d", e)
		}
		resp, err := session.Call(t.Context(), &protocol.Request{ID: "1", Tool: "t", Args: []byte(`{ "a":1}`), Seal: "s", DeadlineMS: 1000}, mux.Exchange{})
		if err != nil || string(resp.Result) != `{ "a":1}` {
			t.Errorf("%v %v", resp, err)
		}
		session.Close(0, "")
		<-ended
	}
}

func TestImpostorIsToldNothing(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	id := &memory{key: testKey()}
	opt := options(s, url, id, &logs)
	id.servers = []ed25519.PublicKey{newKey().Public().(ed25519.PublicKey)}
	start(t, opt)
	for range 3 {
		if a := <-s.got; a.conn != nil {
			t.Fatal("the agent went on with a server that has another key")
		}
	}
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 || !strings.Contains(logs.String(), "database was put back") || !strings.Contains(logs.String(), "check the URL") ||
		!strings.Contains(logs.String(), "`drover enroll create --agent-id web-01`") || !strings.Contains(logs.String(), "`drover-agent enroll --replace`") {
		t.Errorf("%d warnings: %s", n, logs.String())
	}
}

func TestServerKeyChange(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	id := &memory{key: testKey()}
	successor := newKey()
	s.next = successor.Public().(ed25519.PublicKey)
	start(t, options(s, url, id, &logs))
	a := <-s.got
	s.mu.Lock()
	s.key, s.next = successor, nil
	s.mu.Unlock()
	_ = a.conn.Close(0, "")
	if a = <-s.got; a.conn == nil {
		t.Fatal("the announced key wasn't accepted")
	}
	_ = a.conn.Close(0, "")
	if a = <-s.got; a.conn == nil {
		t.Fatal("the new key wasn't kept")
	}
	_ = a.conn.Close(0, "")
	if keys := id.ServerKeys(); len(keys) != 1 || !keys[0].Equal(successor.Public()) {
		t.Errorf("%d keys are pinned", len(keys))
	}
}

func TestEpochThatCannotBeStoredIsNotAcknowledged(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	id := &memory{key: testKey(), broken: true}
	start(t, options(s, url, id, &logs))
	a := <-s.got
	session := mux.New(a.conn, mux.Config{Notify: func(f any) { t.Errorf("the agent said %T", f) }})
	ended := make(chan error, 1)
	go func() { ended <- session.Run(context.Background()) }()
	if err := session.Ping(t.Context()); err != nil { // what it would have said comes before the pong
		t.Error(err)
	}
	session.Close(0, "")
	<-ended
}

func TestLongHello(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	id := &memory{key: testKey()}
	opt := options(s, url, id, &logs)
	var caps []protocol.Capability
	for i := range 256 {
		caps = append(caps, protocol.Capability{Name: "group_" + strings.Repeat("x", 30), Version: i + 1})
	}
	opt.Facts = func() (protocol.Facts, []protocol.Capability) {
		return protocol.Facts{Hostname: "h", Roots: []string{"/srv"}}, caps
	}
	start(t, opt)
	a := <-s.got
	if len(a.hello.Capabilities) != 0 || a.hello.Facts.Hostname != "h" {
		t.Errorf("hello %+v", a.hello)
	}
	facts := make(chan *protocol.FactsUpdate, 1)
	session := mux.New(a.conn, mux.Config{Notify: func(f any) {
		if f, ok := f.(*protocol.FactsUpdate); ok {
			facts <- f
		}
	}})
	ended := make(chan error, 1)
	go func() { ended <- session.Run(context.Background()) }()
	if f := <-facts; len(f.Capabilities) != 256 || len(f.Facts.Roots) != 1 {
		t.Errorf("facts %+v", f)
	}
	session.Close(0, "")
	<-ended
}

type refusing struct {
	mu    sync.Mutex
	times []time.Time
}

func (r *refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, time.Now())
	return nil, errors.New("connection refused")
}

// The server is away for an hour: attempts thin out, never in step, and one line is logged.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs logBuffer
		rt := &refusing{}
		opt := options(nil, "http://127.0.0.1:1", &memory{key: testKey()}, &logs)
		opt.MinBackoff, opt.MaxBackoff, opt.Client = 0, 0, &http.Client{Transport: rt}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := New(opt).Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := len(rt.times); n < 80 || n > 200 {
			t.Errorf("%d attempts in an hour", n)
		}
		for i := 1; i < len(rt.times); i++ {
			if d := rt.times[i].Sub(rt.times[i-1]); d > time.Minute || i == 1 && d > 500*time.Millisecond {
				t.Errorf("attempt %d came after %s", i, d)
			}
		}
		if n := strings.Count(logs.String(), "\n"); n != 1 {
			t.Errorf("%d lines: %s", n, logs.String())
		}
	})
}

// proxyAnswers refuses each dial with a status.
type proxyAnswers struct{ status int }

func (a *proxyAnswers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("<html>"))}, nil
}

// A proxy reaches no server, after a connection that stood: it's said at once with the status,
// and then less and less often.
func TestRefusedByAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs logBuffer
		opt := options(nil, "http://127.0.0.1:1", &memory{key: testKey()}, &logs)
		opt.MinBackoff, opt.MaxBackoff, opt.Client = 0, 0, &http.Client{Transport: &proxyAnswers{502}}
		l := New(opt)
		l.news.down(&goodbyeError{reason: "the server is restarting"}, time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if text := logs.String(); strings.Count(text, "\n") != 2 || strings.Count(text, "or a proxy in front of it, answers and refuses") != 1 || !strings.Contains(text, "answered 502") {
			t.Errorf("after a second: %s", text)
		}
		ctx, cancel = context.WithTimeout(context.Background(), 24*time.Hour)
		defer cancel()
		if err := l.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(logs.String(), "still not connected: "); n < 20 || n > 30 {
			t.Errorf("%d further lines in a day: %s", n, logs.String())
		}
	})
}

// The server is gone without a word, as when it's killed: that's what the line says, with the
// cause behind it.
func TestWhatACutConnectionIsCalled(t *testing.T) {
	s, url := newServer(t)
	var logs logBuffer
	start(t, options(s, url, &memory{key: testKey()}, &logs))
	a := <-s.got
	if _, _, err := a.conn.Read(t.Context()); err != nil { // its epoch: it has nothing else to say
		t.Fatal(err)
	}
	_ = a.conn.Close(0, "")
	a = <-s.got
	_ = a.conn.Close(0, "")
	if text := logs.String(); !strings.Contains(text, "the connection to the server broke off: the server, or a proxy on the way, ended it without a word (failed to") {
		t.Errorf("%s", text)
	}
}

func TestWhatTheServerAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		asked time.Duration
		told  bool
	}{
		"removed": {&RefusedError{Refuse: protocol.Refuse{Reason: "removed", RetryAfterMS: time.Hour.Milliseconds()}}, time.Hour, false},
		"busy":    {&wsconn.DialError{Status: 503, RetryAfter: 5 * time.Second}, 5 * time.Second, false},
		"proxy":   {&ProxyError{Status: 503, RetryAfter: 7 * time.Second}, 7 * time.Second, false},
		"goodbye": {&goodbyeError{retry: 3 * time.Second}, 3 * time.Second, true},
		"closed":  {&protocol.CloseError{Code: protocol.CloseRemoved}, 0, true},
		"cut":     {errors.New("reset"), 0, false},
	} {
		if got := asked(c.err); got != c.asked || told(c.err) != c.told {
			t.Errorf("%s: asked for %s, told %t", name, got, told(c.err))
		}
	}
}

// What an operator must mend is said once, with how, and isn't made to look as if waiting
// would do; the agent asks on all the same.
func TestShutOutSaysWhatToDo(t *testing.T) {
	for reason, want := range map[string]string{
		"unknown":    "no agent with this id and key. To have it back, enrol this host anew: `drover enroll create --agent-id web-01`",
		"generation": "`drover enroll create --agent-id web-01 --replace`",
		"removed":    "`drover enroll create --agent-id NEW-ID`",
		"duplicate":  "for the reason that the server gives",
	} {
		t.Run(reason, func(t *testing.T) {
			s, url := newServer(t)
			s.refuse = func(n int) *protocol.Refuse {
				if n == 1 || n > 4 {
					return nil
				}
				return &protocol.Refuse{Type: "refuse", Code: "unauthenticated", Reason: reason, Message: "its own words"}
			}
			var logs logBuffer
			start(t, options(s, url, &memory{key: testKey()}, &logs))
			a := <-s.got
			if _, _, err := a.conn.Read(t.Context()); err != nil { // its epoch: it has nothing else to say
				t.Fatal(err)
			}
			_ = a.conn.Close(protocol.CloseRemoved, "it's over")
			a = <-s.got
			text := logs.String()
			_ = a.conn.Close(0, "")
			if strings.Count(text, "level=ERROR") != 1 || strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "removed or its key replaced; asking which") || !strings.Contains(text, want) || !strings.Contains(text, "its own words") || strings.Contains(text, "until it works") {
				t.Errorf("%s", text)
			}
		})
	}
	if got := (&news{}).shutOut(&RefusedError{Refuse: protocol.Refuse{Reason: "removed"}}); got != "" {
		t.Errorf("of somebody who hasn't proved to be the server: %q", got)
	}
}

func TestRefusedThenAccepted(t *testing.T) {
	s, url := newServer(t)
	s.refuse = func(n int) *protocol.Refuse {
		if n < 4 {
			return &protocol.Refuse{Type: "refuse", Code: "unavailable", Reason: "busy", Message: "later"}
		}
		return nil
	}
	var logs logBuffer
	start(t, options(s, url, &memory{key: testKey()}, &logs))
	a := <-s.got
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings: %s", n, logs.String())
	}
	_ = a.conn.Close(0, "")
}
