// Package link keeps an agent connected to its server: dial, handshake, session, and again,
// for ever.
package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"syscall"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
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
	// Removed, if not nil, is called each time the server, having proved its key, says that
	// this agent was removed or its key replaced. It must not block.
	Removed func()
	// Anew is the command that enrols this host anew, for the log: drover-agent enroll
	// --replace by default.
	Anew string
	// MinBackoff and MaxBackoff bound the waiting between attempts: protocol.Backoff's when zero.
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
	wakes    wakes
	backoff  protocol.Backoff
	early    int // connections in a row that were cut before they had settled
}

// New makes a link. Its instance, which tells the server this process from a copy of its
// state, is new.
func New(opt Options) *Link {
	if opt.Client == nil {
		opt.Client = &http.Client{Transport: http.DefaultTransport}
	}
	if opt.Anew == "" {
		opt.Anew = "drover-agent enroll --replace"
	}
	b := make([]byte, 16)
	rand.Read(b)
	return &Link{opt: opt, instance: protocol.B64(b), news: news{log: opt.Log, anew: opt.Anew, agentID: opt.Identity.AgentID()}, wakes: wakes{wall: wallClock, every: lookEvery},
		backoff: protocol.Backoff{Min: opt.MinBackoff, Max: opt.MaxBackoff}}
}

// Run connects and stays connected until ctx ends; it returns nil then. Nothing else ends
// it: a server that is away, refuses or has removed this agent may change its mind.
func (l *Link) Run(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	began := l.wakes.wall()
	go func() { defer close(watched); l.wakes.run(watch, began) }()
	defer func() { stop(); <-watched }()
	for ctx.Err() == nil {
		end, err := l.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if removed(err) && l.opt.Removed != nil {
			l.opt.Removed()
		}
		wait := l.backoff.Next(end, mrand.Int64N)
		l.news.down(err, wait)
		l.pause(ctx, wait, end.Asked)
	}
	return nil
}

// removed tells whether a connection failed or ended because this agent, or its key, was
// removed. Only a server that has proved its key can say so.
func removed(err error) bool {
	var ce *protocol.CloseError
	var r *RefusedError
	if errors.As(err, &r) {
		return r.proven && (r.Reason == "removed" || r.Reason == "generation")
	}
	return errors.As(err, &ce) && ce.Code == protocol.CloseRemoved
}

// pause waits, the part that the server asked for by the wall clock: a host that was asleep
// doesn't wait out the rest.
func (l *Link) pause(ctx context.Context, wait, asked time.Duration) {
	until := l.wakes.wall().Add(min(max(asked, 0), protocol.MaxAsked))
	for ctx.Err() == nil {
		woke := l.wakes.next()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
			return
		case <-ctx.Done():
		case <-woke:
			wait = l.backoff.Next(protocol.Ended{Woke: true, Asked: until.Sub(l.wakes.wall())}, mrand.Int64N)
		}
		t.Stop()
	}
}

// asked is what the server wants this agent to wait.
func asked(err error) time.Duration {
	var r *RefusedError
	var de *wsconn.DialError
	var bye *goodbyeError
	var proxy *ProxyError
	switch {
	case errors.As(err, &r):
		return time.Duration(r.RetryAfterMS) * time.Millisecond
	case errors.As(err, &de):
		return de.RetryAfter
	case errors.As(err, &bye):
		return bye.retry
	case errors.As(err, &proxy):
		return proxy.RetryAfter
	}
	return 0
}

// told tells that the server itself ended the connection.
func told(err error) bool {
	var bye *goodbyeError
	var closed *protocol.CloseError
	return errors.As(err, &bye) || errors.As(err, &closed)
}

// goodbyeError is the end of a session that the server announced.
type goodbyeError struct {
	reason string
	retry  time.Duration
}

func (e *goodbyeError) Error() string { return "the server said goodbye: " + e.reason }

// once makes one connection and runs it to its end.
func (l *Link) once(ctx context.Context) (protocol.Ended, error) {
	woke := l.wakes.next()
	dial, stop := until(ctx, woke)
	defer stop()
	conn, w, err := l.connect(dial)
	if err != nil {
		return protocol.Ended{Asked: asked(err), Woke: context.Cause(dial) == errWoke}, err
	}
	stop()
	began := time.Now()
	err = l.session(ctx, conn, w, woke)
	end := protocol.Ended{Up: time.Since(began), Told: told(err), Asked: asked(err), Woke: errors.Is(err, errWoke)}
	return l.judge(end, time.Duration(w.KeepAliveMS)*time.Millisecond), err
}

// judge finds connections that are cut again and again before they have held for a few
// keep-alives, as by a proxy that is too impatient: they don't begin the back-off anew.
func (l *Link) judge(end protocol.Ended, keepAlive time.Duration) protocol.Ended {
	if end.Told || end.Woke || end.Up >= settledAfter*keepAlive {
		l.early = 0
	} else {
		l.early++
	}
	l.news.judged(l.early, end.Up, keepAlive)
	if l.early > 1 {
		end.Up = 0
	}
	return end
}

// settledAfter is after how many keep-alive intervals a connection is a steady one.
const settledAfter = 3

// session runs a connection to its end; woke is closed when this host wakes the next time.
func (l *Link) session(ctx context.Context, conn *wsconn.Conn, w *welcomed, woke <-chan struct{}) error {
	var bye *goodbyeError
	s := mux.New(conn, mux.Config{
		Handler: l.opt.Handler, MaxCalls: l.opt.MaxCalls, Resumer: l.opt.Resumer, Version: w.Version,
		KeepAlive: time.Duration(w.KeepAliveMS) * time.Millisecond,
		Panicked: func(call string, p *fault.Panic) {
			l.opt.Log.Error("a fault inside was kept to one call, or to this connection", "call", call, "panic", p.What, "stack", p.Stack)
		},
		Notify: func(f any) { // called by the reader, which has ended when Run returns
			switch f := f.(type) {
			case *protocol.Goodbye:
				bye = &goodbyeError{reason: text.Line(f.Reason, 200), retry: time.Duration(f.RetryAfterMS) * time.Millisecond}
			case *mux.Doubled:
				l.news.repeated(f.ID)
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
	dead := l.checkOnWake(s, woke)
	err := s.Run(ctx)
	slept := dead()
	switch {
	case bye != nil:
		return bye
	case slept && !told(err):
		return errWoke
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the connection to the server broke off: the server, or a proxy on the way, ended it without a word (%w)", err)
	}
	return err
}

// afterWelcome stores the epoch before anything is sent and tells the server so, names the
// journal, and sends the facts that didn't fit into the hello or weren't known before.
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
	if more := w.more(); more != nil {
		return s.Send(ctx, more)
	}
	return nil
}
