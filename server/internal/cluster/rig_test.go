package cluster

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/tests/testenv"
)

// natsURL is where the tests' NATS listens; the test is skipped where none answers.
func natsURL(t testing.TB) string {
	t.Helper()
	url := cmp.Or(os.Getenv("DROVER_TEST_NATS"), "nats://127.0.0.1:4222")
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "nats://"), 2*time.Second)
	testenv.Require(t, err == nil, "no NATS answers at "+url)
	_ = conn.Close()
	return url
}

// serverKey is a deployment's key.
func serverKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// memory is one end of a mux.Pipe in this process.
type memory struct {
	in, out chan []byte
	end     chan struct{}
	once    *sync.Once
}

func newMemory() (a, b *memory) {
	ab, ba, end, once := make(chan []byte, 1024), make(chan []byte, 1024), make(chan struct{}), new(sync.Once)
	return &memory{ba, ab, end, once}, &memory{ab, ba, end, once}
}

func (m *memory) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case b := <-m.in:
		return b[0] == 1, b[1:], nil
	case <-m.end:
		return false, nil, protocol.ErrCut
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (m *memory) Write(_ context.Context, isBinary bool, msg []byte) error {
	b := append([]byte{0}, msg...)
	if isBinary {
		b[0] = 1
	}
	select {
	case m.out <- b:
		return nil
	case <-m.end:
		return protocol.ErrCut
	}
}

func (m *memory) Close(int, string) error {
	m.once.Do(func() { close(m.end) })
	return nil
}

// agentFunc answers requests as an agent would.
type agentFunc func(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response

func (f agentFunc) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	return f(ctx, req, w)
}

// echo answers with its arguments.
func echo(_ context.Context, req *protocol.Request, _ *mux.Work) *protocol.Response {
	return &protocol.Response{Result: jsontext.Value(req.Args)}
}

// replica is a Bus with what it needs.
type replica struct {
	*Bus
	local *presence.Registry
	t     testing.TB
	stop  func()

	mu        sync.Mutex
	cancelled []fleet.CallID
	online    []fleet.AgentID
}

func newReplica(t testing.TB, key ed25519.PrivateKey, url string) *replica {
	t.Helper()
	r := &replica{t: t}
	r.local = presence.New(func(id fleet.AgentID, _ bool) { r.Changed(id) })
	r.run(Config{URL: url, ServerKey: key, Local: r.local, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	return r
}

// run connects this replica and lets it work until stop, or the test's end.
func (r *replica) run(cfg Config) {
	r.t.Helper()
	cfg.Replica = token()
	cfg.Online = func(id fleet.AgentID, _ int64) { r.mu.Lock(); defer r.mu.Unlock(); r.online = append(r.online, id) }
	cfg.Cancel = func(id fleet.CallID) { r.mu.Lock(); defer r.mu.Unlock(); r.cancelled = append(r.cancelled, id) }
	b, err := Connect(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Bus = b
	if err := b.Start(); err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); b.Run(ctx) }()
	r.stop = sync.OnceFunc(func() { stop(); <-ran; b.Close() })
	r.t.Cleanup(r.stop)
}

// agent connects an agent to this replica and returns its tunnel's session.
func (r *replica) agent(id fleet.AgentID, epoch int64, h agentFunc) *mux.Session {
	r.t.Helper()
	here, there := newMemory()
	s := mux.New(here, mux.Config{Ended: func(err error) {
		own, ok := errors.AsType[*mux.ClosedError](err)
		r.local.Unregister(id, epoch, !ok || own.Code != protocol.CloseGoingAway)
	}})
	host := mux.New(there, mux.Config{Handler: h})
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = s.Run(ctx) })
	all.Go(func() { _ = host.Run(ctx) })
	r.t.Cleanup(func() { stop(); all.Wait() })
	if _, ok := r.local.Register(presence.Entry{Agent: id, Generation: 1, Epoch: epoch, Instance: "i", Since: time.Now(), Session: s}); !ok {
		r.t.Fatalf("%s is not registered", id)
	}
	r.local.Ready(id, epoch)
	r.Changed(id)
	return s
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (r *replica) sees(id fleet.AgentID) bool { online, _ := r.Online(id); return online }

// epochOf is the connection to which this replica sends calls for an agent; 0: to none.
func (r *replica) epochOf(id fleet.AgentID) int64 {
	c, ok := r.Route(id, 1)
	if !ok {
		return 0
	}
	if far, ok := c.(*remote); ok {
		return far.at.epoch
	}
	e, _ := r.local.Lookup(id)
	return e.Epoch
}

func request(id, args string) *protocol.Request {
	return &protocol.Request{ID: id, Tool: "shell_exec", Args: jsontext.Value(args), DeadlineMS: 60_000}
}

// call makes one call as dispatch does.
func (r *replica) call(ctx context.Context, agent fleet.AgentID, id, args string) (*protocol.Response, error) {
	c, ok := r.Route(agent, 1)
	if !ok {
		return nil, protocol.ErrNotSent
	}
	return c.Call(ctx, request(id, args), mux.Exchange{})
}
