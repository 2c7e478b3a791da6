// Package link keeps an agent connected to its server: dial, handshake, session, and again,
// for ever.
package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// Identity is who the agent is; *identity.Identity is one, a simulator may have its own.
type Identity interface {
	AgentID() string
	Generation() int64
	// ServerKeys are what the server may prove: the key it used last and, if one was
	// announced, its successor.
	ServerKeys() []ed25519.PublicKey
	// SawServerKey notes that the server proved used, and next, which used has signed; next
	// is nil when none was announced.
	SawServerKey(used, next ed25519.PublicKey) error
	Key() ed25519.PublicKey
	Sign(message []byte) []byte
	LastEpoch() int64
	// StoreEpoch stores it durably; when it fails, the agent works on without telling the
	// server that it was stored.
	StoreEpoch(epoch int64) error
}

// Options set up a Link. Server, Identity, Handler, Facts and Log are required.
type Options struct {
	Server   string // base URL; https, http, wss or ws
	Identity Identity
	Handler  mux.Handler
	// Facts is asked before each connection for what the host says of itself.
	Facts func() (protocol.Facts, []protocol.Capability)
	Log   *slog.Logger
	// Client opens the WebSocket; NewClient's by default. Its Timeout must be zero.
	Client *http.Client
	// MaxCalls bounds concurrent calls; the session's default when zero.
	MaxCalls int
	// Resumer answers for calls of earlier connections; nil: all unseen.
	Resumer mux.Resumer
	// Boot names the journal behind Resumer: see protocol.Resume.
	Boot string
	// Connected, if not nil, is called after each handshake, before the session's first
	// frame is read. It must not block.
	Connected func(Connection)
	// MinBackoff and MaxBackoff bound the waiting between attempts; 0.5 s and 60 s when zero.
	MinBackoff, MaxBackoff time.Duration
}

// Connection is one tunnel that is up.
type Connection struct {
	Epoch int64
	// ClockAhead is how far this host's clock is ahead of the server's, give or take a
	// round trip.
	ClockAhead time.Duration
	Session    *mux.Session
}

// Link keeps one agent connected. New makes one; Run does it.
type Link struct {
	opt      Options
	instance string
	news     news
}

// New makes a link. Its instance, which tells the server this process from a copy of its
// state, is new.
func New(opt Options) *Link {
	if opt.Client == nil {
		opt.Client = &http.Client{Transport: http.DefaultTransport}
	}
	if opt.MinBackoff == 0 {
		opt.MinBackoff = 500 * time.Millisecond
	}
	if opt.MaxBackoff == 0 {
		opt.MaxBackoff = time.Minute
	}
	b := make([]byte, 16)
	rand.Read(b)
	return &Link{opt: opt, instance: protocol.B64(b), news: news{log: opt.Log}}
}

// Run connects and stays connected until ctx ends; it returns nil then. Nothing else ends
// it: a server that is away, refuses or has removed this agent may change its mind.
func (l *Link) Run(ctx context.Context) error {
	attempt := 0
	for ctx.Err() == nil {
		up, err := l.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if up > settled {
			attempt = 0
		}
		wait := l.wait(attempt, err)
		attempt++
		l.news.down(err, wait)
		if !sleep(ctx, wait) {
			break
		}
	}
	return nil
}

// settled is how long a connection must have been up for the back-off to begin anew.
const settled = 10 * time.Second

// wait is the time to the next attempt: anything up to a ceiling that doubles (full jitter,
// from the first one), on top of what the server asked for.
func (l *Link) wait(attempt int, err error) time.Duration {
	ceiling := l.opt.MaxBackoff
	if shift := min(attempt, 20); l.opt.MinBackoff<<shift < ceiling {
		ceiling = l.opt.MinBackoff << shift
	}
	jitter := mrand.N(ceiling + 1)
	var asked time.Duration
	var r *RefusedError
	var de *wsconn.DialError
	var bye *goodbyeError
	switch {
	case errors.As(err, &r):
		asked = time.Duration(r.RetryAfterMS) * time.Millisecond
	case errors.As(err, &de):
		asked = de.RetryAfter
	case errors.As(err, &bye):
		asked = bye.retry
	}
	return min(max(asked, 0), maxAsked) + jitter
}

// maxAsked bounds what a server can make an agent wait.
const maxAsked = 24 * time.Hour

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// goodbyeError is the end of a session that the server announced.
type goodbyeError struct {
	reason string
	retry  time.Duration
}

func (e *goodbyeError) Error() string { return "the server said goodbye: " + e.reason }

// once makes one connection and runs it to its end; up is how long it was up.
func (l *Link) once(ctx context.Context) (up time.Duration, err error) {
	conn, w, err := l.connect(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = l.session(ctx, conn, w)
	return time.Since(began), err
}

func (l *Link) session(ctx context.Context, conn *wsconn.Conn, w *welcomed) error {
	var bye *goodbyeError
	s := mux.New(conn, mux.Config{
		Handler: l.opt.Handler, MaxCalls: l.opt.MaxCalls, Resumer: l.opt.Resumer, Version: w.Version,
		KeepAlive: time.Duration(w.KeepAliveMS) * time.Millisecond,
		Notify: func(f any) { // called by the reader, which has ended when Run returns
			if g, ok := f.(*protocol.Goodbye); ok {
				bye = &goodbyeError{reason: text.Line(g.Reason, 200), retry: time.Duration(g.RetryAfterMS) * time.Millisecond}
			}
		},
	})
	if err := l.afterWelcome(ctx, s, w); err != nil {
		s.Close(0, "")
	}
	l.news.up(w)
	if l.opt.Connected != nil {
		l.opt.Connected(Connection{Epoch: w.Epoch, ClockAhead: w.ahead, Session: s})
	}
	err := s.Run(ctx)
	if bye != nil {
		return bye
	}
	return err
}

// afterWelcome stores the epoch before anything is sent and tells the server so, names the
// journal, and sends the facts that didn't fit into the hello.
func (l *Link) afterWelcome(ctx context.Context, s *mux.Session, w *welcomed) error {
	if err := l.opt.Identity.StoreEpoch(w.Epoch); err != nil {
		l.opt.Log.Error("the connection's epoch could not be stored; the agent works on", "error", err)
	} else if err := s.Send(ctx, &protocol.Epoch{Type: protocol.TypeEpoch, Epoch: w.Epoch}); err != nil {
		return err
	}
	if w.Version >= 2 && l.opt.Boot != "" {
		if err := s.Send(ctx, &protocol.Resume{Type: protocol.TypeResume, Boot: l.opt.Boot}); err != nil {
			return err
		}
	}
	if w.rest == nil {
		return nil
	}
	return s.Send(ctx, w.rest)
}
