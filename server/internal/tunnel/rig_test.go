package tunnel_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// rig is a server's tunnel over a real store, a real HTTP server and real WebSockets.
type rig struct {
	t        testing.TB
	db       *store.DB
	presence *presence.Registry
	tunnel   *tunnel.Server
	enroll   *enroll.Service
	http     *httptest.Server
	key      ed25519.PrivateKey
	written  *written
}

// written notes which epochs the store was told to be stored by their agents: to ask it by a claim
// would make a claim.
type written struct {
	*store.DB
	epochs sync.Map
}

func (w *written) AckEpoch(ctx context.Context, id fleet.AgentID, generation, epoch int64) error {
	err := w.DB.AckEpoch(ctx, id, generation, epoch)
	if err == nil {
		w.epochs.Store(fmt.Sprint(id, " ", epoch), true)
	}
	return err
}

func newRig(t testing.TB, change ...func(*tunnel.Config)) *rig {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	r := &rig{t: t, db: db, presence: presence.New(nil), key: key, written: &written{DB: db}}
	cfg := tunnel.Config{Store: r.written, Presence: r.presence, ServerKey: key, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, f := range change {
		f(&cfg)
	}
	r.tunnel = tunnel.New(cfg)
	r.enroll = enroll.New(enroll.Config{Store: db, ServerKey: key, CloseAgent: func(id fleet.AgentID, code int, reason string) { r.presence.CloseAgent(id, code, reason) }})
	m := http.NewServeMux()
	m.Handle("GET /agent/v1/tunnel", r.tunnel)
	m.Handle("POST /agent/v1/enroll", r.enroll)
	r.http = httptest.NewServer(m)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		if err := r.tunnel.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		r.http.Close()
		if err := db.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return r
}

// host is an agent's identity, as an agent written by somebody else would hold it.
type host struct {
	id         string
	generation int64
	key        ed25519.PrivateKey
	instance   string
	lastEpoch  int64
	facts      protocol.Facts
	caps       []protocol.Capability
	versions   []int // protocol.Supported() when nil
	noAck      bool
}

// enrolled registers a new agent by a real token.
func (r *rig) enrolled(id string, replace ...bool) *host {
	r.t.Helper()
	text, _, err := r.enroll.Create(r.t.Context(), "system:test", enroll.Spec{Agent: id, Replace: len(replace) > 0})
	if err != nil {
		r.t.Fatal(err)
	}
	token, err := protocol.ParseEnrolToken(text)
	if err != nil {
		r.t.Fatal(err)
	}
	pub, key, _ := ed25519.GenerateKey(rand.Reader)
	status, reply := r.postEnrol(token, pub, key)
	if status != 200 {
		r.t.Fatalf("enrol: %d", status)
	}
	return &host{id: id, generation: reply.Generation, key: key, instance: id + "-1", caps: []protocol.Capability{{Name: "shell_exec", Version: 1}}}
}

// line is one open tunnel, seen from the agent's side.
type line struct {
	conn    *wsconn.Conn
	welcome protocol.Welcome
}

var errRefused = errors.New("refused")

// dial shakes hands and stops there. A refusal is errRefused with its frame.
func (r *rig) dial(h *host) (l *line, refuse *protocol.Refuse, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := wsconn.Dial(ctx, r.http.URL, http.DefaultClient, nil)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close(0, "")
		}
	}()
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	caps := h.caps
	if caps == nil {
		caps = []protocol.Capability{}
	}
	versions := h.versions
	if versions == nil {
		versions = protocol.Supported()
	}
	hello, err := protocol.Encode(&protocol.Hello{Type: protocol.TypeHello, AgentID: h.id, Versions: versions, Generation: h.generation,
		Instance: h.instance, LastEpoch: h.lastEpoch, Nonce: protocol.B64(nonce), Facts: h.facts, Capabilities: caps})
	if err != nil {
		return nil, nil, err
	}
	if err := conn.Write(ctx, false, hello); err != nil {
		return nil, nil, err
	}
	var ch protocol.Challenge
	if refuse, err := next(ctx, conn, &ch); err != nil {
		return nil, refuse, err
	}
	server := r.key.Public().(ed25519.PublicKey)
	own := h.key.Public().(ed25519.PublicKey)
	challenge, _ := protocol.UnB64(ch.Nonce, protocol.NonceSize)
	auth, _ := protocol.Encode(&protocol.Auth{Type: protocol.TypeAuth, Signature: protocol.B64(ed25519.Sign(h.key, protocol.AgentTranscript(hello, challenge, own, server)))})
	if err := conn.Write(ctx, false, auth); err != nil {
		return nil, nil, err
	}
	l = &line{conn: conn}
	if refuse, err := next(ctx, conn, &l.welcome); err != nil {
		return nil, refuse, err
	}
	conn.Established()
	return l, nil, nil
}

func next(ctx context.Context, conn *wsconn.Conn, v any) (*protocol.Refuse, error) {
	_, msg, err := conn.Read(ctx)
	if err != nil {
		return nil, err
	}
	if t, _ := protocol.PeekType(msg); t == protocol.TypeRefuse {
		var refuse protocol.Refuse
		if err := protocol.DecodeInto(msg, &refuse); err != nil {
			return nil, err
		}
		return &refuse, errRefused
	}
	return nil, protocol.DecodeInto(msg, v)
}

// online is a well-behaved agent's running session.
type online struct {
	session *mux.Session
	epoch   int64
	done    chan struct{}
	err     error // read after done
}

func (o *online) stop() {
	o.session.Close(protocol.CloseNormal, "test")
	<-o.done
}

type handlerFunc func(ctx context.Context, req *protocol.Request, progress func(string)) *protocol.Response

func (f handlerFunc) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	return f(ctx, req, w.Progress)
}

// connect brings an agent online; its handler answers with the agent's id and the args.
func (r *rig) connect(h *host) *online {
	r.t.Helper()
	return r.connectWith(h, func(_ context.Context, req *protocol.Request, _ func(string)) *protocol.Response {
		return &protocol.Response{Result: []byte(fmt.Sprintf(`{"agent":%q,"args":%s}`, h.id, req.Args))}
	})
}

func (r *rig) connectWith(h *host, f handlerFunc) *online {
	r.t.Helper()
	l, refuse, err := r.dial(h)
	if err != nil {
		r.t.Fatalf("connect %s: %v %+v", h.id, err, refuse)
	}
	o := &online{epoch: l.welcome.Epoch, done: make(chan struct{})}
	o.session = mux.New(l.conn, mux.Config{Handler: f, Version: l.welcome.Version, KeepAlive: time.Duration(l.welcome.KeepAliveMS) * time.Millisecond})
	h.lastEpoch = l.welcome.Epoch
	if !h.noAck {
		if err := o.session.Send(r.t.Context(), &protocol.Epoch{Type: protocol.TypeEpoch, Epoch: l.welcome.Epoch}); err != nil {
			r.t.Fatal(err)
		}
	}
	if l.welcome.Version >= 2 {
		if err := o.session.Send(r.t.Context(), &protocol.Resume{Type: protocol.TypeResume, Boot: h.id + ".boot"}); err != nil {
			r.t.Fatal(err)
		}
	}
	go func() {
		defer close(o.done)
		o.err = o.session.Run(context.Background())
	}()
	r.t.Cleanup(o.stop)
	eventually(r.t, h.id+" is online", func() bool {
		online, _, epoch := r.presence.State(fleet.AgentID(h.id))
		return online && epoch == o.epoch || !o.session.Alive()
	})
	return o
}

// eventually polls for what another goroutine or the store does; it fails after 10 s.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

var callIDs struct {
	sync.Mutex
	n int
}

func newRequest(tool, args string) *protocol.Request {
	callIDs.Lock()
	defer callIDs.Unlock()
	callIDs.n++
	return &protocol.Request{ID: fmt.Sprintf("0192f000-0000-7000-8000-%012d", callIDs.n), Tool: tool, Args: []byte(args),
		Seal: protocol.B64(make([]byte, 32)), Caller: protocol.Caller{Principal: "pat:1", User: "ann", Kind: "pat"}, DeadlineMS: 60_000}
}
