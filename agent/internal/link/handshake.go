package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// RefusedError is a server's refusal in the handshake.
type RefusedError struct {
	protocol.Refuse
	proven bool // the server had proved its key before
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server refuses this agent (%s): %s", text.Line(e.Reason, 64), text.Line(e.Message, 500))
}

// errImpostor: whoever answers doesn't prove the key that was pinned at enrolment. It may be
// the server all the same: it can't prove it to an agent whose key it doesn't know, so that
// nobody learns from it which agents there are. news says what to do.
var errImpostor = errors.New("the answer isn't signed, for this agent, by the server that it was enrolled with")

// welcomed is a handshake's result.
type welcomed struct {
	protocol.Welcome
	ahead time.Duration
	facts *protocol.FactsUpdate // all of it, as the hello would have it
	short bool                  // the hello has less
}

// more is what is to be said after the welcome, nil for nothing: what didn't fit into the
// hello and, from version 2, how the clocks differ, to the second.
func (w *welcomed) more() *protocol.FactsUpdate {
	if w.Version >= 2 {
		w.facts.Facts.ClockAheadMS = w.ahead.Round(time.Second).Milliseconds()
		return w.facts
	}
	if w.short {
		return w.facts
	}
	return nil
}

// connect dials and shakes hands within protocol.HandshakeTimeout each.
func (l *Link) connect(ctx context.Context) (*wsconn.Conn, *welcomed, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*protocol.HandshakeTimeout)
	defer cancel()
	conn, err := wsconn.Dial(ctx, l.opt.Server, l.opt.Client, nil)
	if err != nil {
		return nil, nil, patience(ctx, err)
	}
	w, err := l.shake(ctx, conn)
	if err != nil {
		_ = conn.Close(0, "") // it failed already
		return nil, nil, patience(ctx, err)
	}
	conn.Established()
	return conn, w, nil
}

// patience says so where time was what ran out, or TLS met a server without.
func patience(ctx context.Context, err error) error {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("the server speaks plain HTTP there, not TLS: is http:// meant, or the port of a TLS proxy? (%w)", err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("whoever is there didn't open the tunnel within %s: %w", 2*protocol.HandshakeTimeout, err)
	}
	return err
}

// hello makes the first frame. When facts and capabilities make it too long, it has fewer
// and is short.
func (l *Link) hello() (raw []byte, facts *protocol.FactsUpdate, short bool, err error) {
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	f, caps := l.opt.Facts()
	if caps == nil {
		caps = []protocol.Capability{}
	}
	h := protocol.Hello{Type: protocol.TypeHello, AgentID: l.opt.Identity.AgentID(), Versions: protocol.Supported(),
		Generation: l.opt.Identity.Generation(), Instance: l.instance, LastEpoch: l.opt.Identity.LastEpoch(),
		Nonce: protocol.B64(nonce), Facts: f, Capabilities: caps}
	facts = &protocol.FactsUpdate{Type: protocol.TypeFacts, Facts: f, Capabilities: caps}
	raw, err = protocol.Encode(&h)
	if err != nil || len(raw) <= protocol.MaxHello {
		return raw, facts, false, err
	}
	h.Facts = protocol.Facts{Hostname: text.Line(f.Hostname, 253), OS: f.OS, Arch: f.Arch, AgentVersion: f.AgentVersion}
	h.Capabilities = []protocol.Capability{}
	raw, err = protocol.Encode(&h)
	return raw, facts, true, err
}

func (l *Link) shake(ctx context.Context, conn *wsconn.Conn) (*welcomed, error) {
	raw, facts, short, err := l.hello()
	if err != nil {
		return nil, err
	}
	if err := conn.Write(ctx, false, raw); err != nil {
		return nil, err
	}
	var ch protocol.Challenge
	if err := readFrame(ctx, conn, protocol.TypeChallenge, &ch); err != nil {
		return nil, err
	}
	nonce, err := protocol.UnB64(ch.Nonce, protocol.NonceSize)
	if err != nil {
		return nil, err
	}
	id := l.opt.Identity
	own := id.Key()
	server, err := l.proven(&ch, raw, nonce)
	if err != nil {
		return nil, err
	}
	auth, err := protocol.Encode(&protocol.Auth{Type: protocol.TypeAuth, Signature: protocol.B64(id.Sign(protocol.AgentTranscript(raw, nonce, own, server)))})
	if err != nil {
		return nil, err
	}
	if err := conn.Write(ctx, false, auth); err != nil {
		return nil, err
	}
	w := &welcomed{facts: facts, short: short}
	if err := readFrame(ctx, conn, protocol.TypeWelcome, &w.Welcome); err != nil {
		if r := (*RefusedError)(nil); errors.As(err, &r) {
			r.proven = true
		}
		return nil, err
	}
	return w, l.checkWelcome(w, server)
}

// proven finds the pinned key with which the server signed.
func (l *Link) proven(ch *protocol.Challenge, hello, nonce []byte) (ed25519.PublicKey, error) {
	sig, err := protocol.UnB64(ch.Signature, ed25519.SignatureSize)
	if err != nil {
		return nil, err
	}
	own := l.opt.Identity.Key()
	for _, server := range l.opt.Identity.ServerKeys() {
		if ed25519.Verify(server, protocol.ServerTranscript(hello, nonce, own, server), sig) {
			return server, nil
		}
	}
	return nil, errImpostor
}

func (l *Link) checkWelcome(w *welcomed, used ed25519.PublicKey) error {
	if w.Version < protocol.MinVersion || w.Version > protocol.Version {
		return fmt.Errorf("the server chose protocol version %d, which wasn't offered", w.Version)
	}
	if w.Epoch < 1 || w.KeepAliveMS < 100 || w.KeepAliveMS > 10*60*1000 {
		return errors.New("the server's welcome has a value out of range")
	}
	w.ahead = l.wakes.wall().Sub(time.UnixMicro(w.ServerTime))
	next, err := nextKey(w, used)
	if err != nil {
		return err
	}
	if err := l.opt.Identity.SawServerKey(used, next); err != nil {
		l.opt.Log.Error("the server's announced key could not be stored; the agent works on", "error", err)
	}
	return nil
}

// nextKey is the announced successor of the server's key, nil if there's none.
func nextKey(w *welcomed, used ed25519.PublicKey) (ed25519.PublicKey, error) {
	if w.NextServerKey == "" {
		return nil, nil
	}
	next, err := protocol.UnB64(w.NextServerKey, ed25519.PublicKeySize)
	if err != nil {
		return nil, err
	}
	sig, err := protocol.UnB64(w.NextServerKeySignature, ed25519.SignatureSize)
	if err != nil {
		return nil, err
	}
	if !ed25519.Verify(used, protocol.NextKeyTranscript(next), sig) {
		return nil, errors.New("the announced server key isn't signed by the present one")
	}
	return next, nil
}

// readFrame reads one frame of the handshake; a refuse in its place is a *RefusedError.
func readFrame(ctx context.Context, conn *wsconn.Conn, want protocol.Type, v any) error {
	bin, msg, err := conn.Read(ctx)
	if err != nil {
		return err
	}
	t, err := protocol.PeekType(msg)
	if err != nil {
		return err
	}
	if t == protocol.TypeRefuse && !bin {
		r := &RefusedError{}
		if err := protocol.DecodeInto(msg, &r.Refuse); err != nil {
			return err
		}
		return r
	}
	if bin || t != want {
		return fmt.Errorf("the server sent something else than a %s frame", want)
	}
	return protocol.DecodeInto(msg, v)
}
