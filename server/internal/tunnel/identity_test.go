package tunnel_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// refused dials and expects a refusal with this reason.
func (r *rig) refused(h *host, reason string) *protocol.Refuse {
	r.t.Helper()
	l, refuse, err := r.dial(h)
	if err == nil {
		_ = l.conn.Close(0, "")
		r.t.Fatalf("accepted, want refusal %s", reason)
	}
	if !errors.Is(err, errRefused) || refuse.Reason != reason {
		r.t.Fatalf("got %v %+v, want refusal %s", err, refuse, reason)
	}
	return refuse
}

// acked waits until the store knows that web-01 has stored the epoch.
func (r *rig) acked(epoch int64) {
	r.t.Helper()
	eventually(r.t, "the epoch's acknowledgement", func() bool {
		_, ok := r.written.epochs.Load(fmt.Sprint("web-01 ", epoch))
		return ok
	})
}

func TestUnknownAndWrongKeyLookAlike(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	_, other, _ := ed25519.GenerateKey(rand.Reader)
	unknown := *h
	unknown.id = "no-such-host"
	wrong := *h
	wrong.key = other
	future := *h
	future.generation = 9
	a, b, c := r.refused(&unknown, "unknown"), r.refused(&wrong, "unknown"), r.refused(&future, "unknown")
	if *a != *b || *b != *c {
		t.Errorf("they can be told apart: %+v, %+v, %+v", a, b, c)
	}
	malformed := *h
	malformed.id = "Web_01"
	r.refused(&malformed, "unknown")
}

func TestServerProvesItself(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	_, impostor, _ := ed25519.GenerateKey(rand.Reader)
	ctx := t.Context()
	conn := r.open()
	nonce := make([]byte, protocol.NonceSize)
	hello, _ := protocol.Encode(&protocol.Hello{Type: "hello", AgentID: h.id, Versions: []int{1}, Generation: 1, Instance: "i", Nonce: protocol.B64(nonce), Capabilities: []protocol.Capability{}})
	if err := conn.Write(ctx, false, hello); err != nil {
		t.Fatal(err)
	}
	var ch protocol.Challenge
	if _, err := next(ctx, conn, &ch); err != nil {
		t.Fatal(err)
	}
	sig, _ := protocol.UnB64(ch.Signature, 64)
	challenge, _ := protocol.UnB64(ch.Nonce, 32)
	own := h.key.Public().(ed25519.PublicKey)
	for name, c := range map[string]struct {
		key  ed25519.PublicKey
		want bool
	}{"the server": {r.key.Public().(ed25519.PublicKey), true}, "an impostor": {impostor.Public().(ed25519.PublicKey), false}} {
		if got := ed25519.Verify(c.key, protocol.ServerTranscript(hello, challenge, own, c.key), sig); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	_ = conn.Close(0, "")
}

func TestRemoved(t *testing.T) {
	var log lines
	r := newRig(t, log.to)
	h := r.enrolled("web-01")
	o := r.connect(h)
	if err := r.enroll.RemoveAgent(t.Context(), "pat:1", "web-01"); err != nil {
		t.Fatal(err)
	}
	<-o.done
	// An agent that writes at this moment may find the socket closed before it has read why.
	var ce *protocol.CloseError
	if errors.As(o.err, &ce) && ce.Code != protocol.CloseRemoved {
		t.Errorf("the agent was told %v", o.err)
	}
	if ref := r.refused(h, "removed"); ref.RetryAfterMS < 60_000 {
		t.Errorf("it may come back after %d ms", ref.RetryAfterMS)
	}
	// The log says why, and names no error where there was none.
	if said := log.with("agent refused"); len(said) != 1 || !strings.Contains(said[0], "reason=removed") || strings.Contains(said[0], "error=") {
		t.Errorf("%q", said)
	}
	for _, replace := range []bool{false, true} {
		if _, _, err := r.enroll.Create(t.Context(), "pat:1", enroll.Spec{Agent: "web-01", Replace: replace}); err == nil {
			t.Errorf("a removed id was given out again (replace %t)", replace)
		}
	}
}

func TestReplacedKey(t *testing.T) {
	r := newRig(t)
	old := r.enrolled("web-01")
	o := r.connect(old)
	fresh := r.enrolled("web-01", true)
	<-o.done
	if fresh.generation != 2 {
		t.Fatalf("generation %d", fresh.generation)
	}
	r.refused(old, "generation")
	r.connect(fresh)
	if _, ok := r.presence.Route("web-01", 1); ok {
		t.Error("the old generation is routed to")
	}
	if _, ok := r.presence.Route("web-01", 2); !ok {
		t.Error("the new generation isn't")
	}
}

func TestSameProcessTakesOver(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	first := r.connect(h)
	second := r.connect(h)
	<-first.done
	var ce *protocol.CloseError
	if !errors.As(first.err, &ce) || ce.Code != protocol.CloseReplaced {
		t.Errorf("the first was told %v", first.err)
	}
	if online, _, epoch := r.presence.State("web-01"); !online || epoch != second.epoch {
		t.Errorf("online %t with epoch %d, want %d", online, epoch, second.epoch)
	}
}

func TestDeadDuplicateGivesWay(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	l, _, err := r.dial(h) // and never reads again
	if err != nil {
		t.Fatal(err)
	}
	defer l.conn.Close(0, "")
	restarted := *h
	restarted.instance, restarted.lastEpoch = "after-a-restart", l.welcome.Epoch
	began := time.Now()
	o := r.connect(&restarted)
	if d := time.Since(began); d < 1900*time.Millisecond || d > 8*time.Second {
		t.Errorf("took %s; the first one has 2 s to answer", d)
	}
	if _, _, epoch := r.presence.State("web-01"); epoch != o.epoch {
		t.Errorf("epoch %d, want %d", epoch, o.epoch)
	}
}

// A copy of the state folder that is started after the original has moved on.
func TestForkedCopy(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	o := r.connect(h)
	r.acked(o.epoch)
	o.stop()
	copied := *h
	copied.instance = "copy"
	o = r.connect(h)
	r.acked(o.epoch)
	o.stop()
	eventually(t, "offline", func() bool { online, _, _ := r.presence.State("web-01"); return !online })
	r.refused(&copied, "quarantined")
	if q := r.db.Snapshot().Quarantined["web-01"]; q.Reason != "forked" {
		t.Errorf("not shown: %+v", q)
	}
}

// A welcome that got lost, or an epoch that couldn't be stored, makes no forked copy.
func TestUnacknowledgedEpochIsNoFork(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	h.noAck = true
	r.connect(h).stop()
	h.lastEpoch = 0
	r.connect(h)
}

func TestLateCloseOfTheOldConnection(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	for range 20 {
		r.connect(h)
	}
	last := r.connect(h)
	c, ok := r.presence.Route("web-01", 1)
	if !ok {
		t.Fatal("no route")
	}
	if _, err := c.Call(t.Context(), newRequest("t", `{}`), mux.Exchange{}); err != nil {
		t.Fatal(err)
	}
	if r.presence.Unregister("web-01", last.epoch-1, true) {
		t.Error("an old epoch ended the presence")
	}
	if !r.presence.Unregister("web-01", last.epoch, true) {
		t.Error("the present epoch didn't")
	}
}

func TestViolationsQuarantine(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	good := r.enrolled("db-01")
	r.connect(good)
	for i := range 3 {
		l, _, err := r.dial(h)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		h.lastEpoch = l.welcome.Epoch
		if err := l.conn.Write(t.Context(), false, []byte(`{"type":"response","ID":1}`)); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, _, err = l.conn.Read(t.Context())
		}
		var ce *protocol.CloseError
		if !errors.As(err, &ce) || ce.Code != protocol.CloseViolation {
			t.Fatalf("connection %d ended with %v", i, err)
		}
		eventually(t, "the violation counted", func() bool { return r.tunnel.Stats().Violations == int64(i+1) })
	}
	if ref := r.refused(h, "quarantined"); ref.RetryAfterMS < 60_000 {
		t.Errorf("it may come back after %d ms", ref.RetryAfterMS)
	}
	if c, ok := r.presence.Route("db-01", 1); !ok {
		t.Error("another agent went offline")
	} else if _, err := c.Call(t.Context(), newRequest("t", `{}`), mux.Exchange{}); err != nil {
		t.Errorf("another agent's call: %v", err)
	}
}

func TestGoodbyeOnClose(t *testing.T) {
	r := newRig(t)
	said := make(chan *protocol.Goodbye, 1)
	h := r.enrolled("web-01")
	l, _, err := r.dial(h)
	if err != nil {
		t.Fatal(err)
	}
	s := mux.New(l.conn, mux.Config{Handler: handlerFunc(nil), Notify: func(f any) { said <- f.(*protocol.Goodbye) }})
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	if err := r.tunnel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := <-said; g.RetryAfterMS < 1000 {
		t.Errorf("%+v", g)
	}
	<-done
	if _, _, err := r.dial(h); err == nil {
		t.Error("a closed server accepts agents")
	}
}

func TestHandshakesAreLimited(t *testing.T) {
	r := newRig(t, func(c *tunnel.Config) { c.MaxHandshakes = 2 })
	h := r.enrolled("web-01")
	a, b := r.open(), r.open()
	defer b.Close(0, "")
	if _, _, err := r.dial(h); err == nil {
		t.Fatal("a third connection was let in")
	}
	_ = a.Close(0, "")
	eventually(t, "room again", func() bool { l, _, err := r.dial(h); return err == nil && l.conn.Close(0, "") == nil })
}
