package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// offline waits until web-01 has no tunnel.
func (r *rig) offline() {
	r.t.Helper()
	eventually(r.t, "offline", func() bool { _, here := r.presence.Lookup("web-01"); return !here })
}

// as is another process with this state.
func (h *host) as(instance string) *host {
	other := *h
	other.instance = instance
	return &other
}

// told waits for the end of a connection that the server asked to begin anew.
func (o *online) told(t *testing.T) {
	t.Helper()
	select {
	case <-o.done:
	case <-time.After(20 * time.Second):
		t.Fatal("it wasn't asked to connect anew")
	}
	var ce *protocol.CloseError
	if errors.As(o.err, &ce) && ce.Code != protocol.CloseGoingAway {
		t.Errorf("it ended with %v", o.err)
	}
}

// Beside a living first one a copy is refused, and from then on stays out, as whichever
// process it comes and whether the first is connected, just away, being restarted, or stopped.
func TestAliveDuplicateIsRefused(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	first := r.connect(h)
	r.acked(first.epoch)
	copied := *h
	if ref := r.refused(copied.as("copy"), "duplicate"); ref.RetryAfterMS < 60_000 {
		t.Errorf("it may come back after %d ms", ref.RetryAfterMS)
	}
	if q := r.db.Snapshot().Quarantined["web-01"]; q.Reason != "duplicate" {
		t.Errorf("not shown: %+v", q)
	}
	first.told(t)
	r.offline()
	if !r.tunnel.Expected("web-01") {
		t.Error("calls don't wait for it")
	}
	for i := range 4 {
		r.refused(copied.as(fmt.Sprintf("copy, start %d", i)), "duplicate")
	}
	first = r.connect(h)
	r.acked(first.epoch)
	r.refused(copied.as("copy, beside it again"), "quarantined")
	first.stop()
	r.offline()
	r.refused(copied.as("copy, while it's stopped"), "quarantined")
	first = r.connect(h.as("restarted"))
	r.acked(first.epoch)
	first.stop()
	r.offline()
	r.refused(copied.as("copy, once more"), "quarantined")
	if q := r.db.Snapshot().Quarantined["web-01"]; q.Reason != "forked" || q.Until.IsZero() {
		t.Errorf("not shown: %+v", q)
	}
}

// When the first one is gone for good before it could be told from its copy, none is let in.
func TestCopiesThatCannotBeToldApart(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	first := r.connect(h)
	r.acked(first.epoch)
	r.refused(h.as("copy"), "duplicate")
	first.told(t)
	r.offline()
	r.refused(h.as("the first, restarted, or so it says"), "duplicate")
	r.refused(h.as("copy"), "duplicate")
	h = r.enrolled("web-01", true)
	r.connect(h)
}

// A copy that was let in because the first one was away is put out when that comes back: it
// has been the same process all the time, so the other one was no restart of it.
func TestTheFirstHasItsIdentityBack(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	first := r.connect(h)
	r.acked(first.epoch)
	copied := h.as("copy")
	first.stop()
	r.offline()
	thief := r.connect(copied)
	r.acked(thief.epoch)
	first = r.connect(h)
	<-thief.done
	if online, _, epoch := r.presence.State("web-01"); !online || epoch != first.epoch {
		t.Errorf("online %t with epoch %d, want the first with %d", online, epoch, first.epoch)
	}
	if q := r.db.Snapshot().Quarantined["web-01"]; q.Reason != "replaced" {
		t.Errorf("not shown: %+v", q)
	}
	r.acked(first.epoch)
	r.refused(copied, "quarantined")
	first.stop()
	r.offline()
	r.refused(copied.as("copy, started again"), "quarantined")
}

// However often a copy was started again in the first one's absence, and by whichever of
// them it's asked, the first is known when it comes back, and none of the copies serves on.
func TestTheFirstIsKnownAfterManyCopies(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	first := r.connect(h)
	r.acked(first.epoch)
	copied := *h
	first.stop()
	r.offline()
	var last *online
	for i := range 5 {
		last = r.connect(copied.as(fmt.Sprint("copy, start ", i)))
		copied.lastEpoch = last.epoch
		r.acked(last.epoch)
		if i < 4 {
			last.stop()
			r.offline()
		}
	}
	first = r.connect(h)
	<-last.done
	if online, _, epoch := r.presence.State("web-01"); !online || epoch != first.epoch {
		t.Errorf("online %t with epoch %d, want the first with %d", online, epoch, first.epoch)
	}
	if q := r.db.Snapshot().Quarantined["web-01"]; q.Reason != "replaced" {
		t.Errorf("not shown: %+v", q)
	}
	r.acked(first.epoch)
	for i := range 5 {
		r.refused(copied.as(fmt.Sprint("copy, start ", i)), "quarantined")
	}
}

// A call that's under way ends before the agent is asked to connect anew, unless it lasts;
// one of version 1, which can't be asked for its calls then, isn't disturbed in one.
func TestRenewingWaitsForCalls(t *testing.T) {
	for version, want := range map[int]bool{1: false, 2: true} {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *tunnel.Config) { c.KeepAlive = time.Second })
			h := r.enrolled("web-01")
			h.versions = []int{version}
			began, end := make(chan bool, 1), make(chan bool)
			first := r.connectWith(h, func(ctx context.Context, _ *protocol.Request, _ func(string)) *protocol.Response {
				began <- true
				select {
				case <-end:
				case <-ctx.Done():
				}
				return &protocol.Response{Result: []byte(`{}`)}
			})
			c, ok := r.presence.Route("web-01", 1)
			if !ok {
				t.Fatal("no route")
			}
			answer := make(chan error, 1)
			go func() {
				_, err := c.Call(context.Background(), newRequest("shell_exec", `{}`), mux.Exchange{})
				answer <- err
			}()
			<-began
			r.refused(h.as("copy"), "duplicate")
			if want { // its call is asked for when it's back
				first.told(t)
				if err := <-answer; !errors.Is(err, protocol.ErrCut) {
					t.Errorf("the call ended with %v", err)
				}
				return
			}
			select {
			case <-first.done:
				t.Error("it was disturbed")
			case <-time.After(4 * time.Second): // longer than one of version 2 has
			}
			close(end)
			if err := <-answer; err != nil {
				t.Error(err)
			}
			first.told(t)
		})
	}
}

// Who has one key, and connects again and again, fills neither the log nor the record,
// whatever each connection says and for whichever reason it's refused.
func TestOneKeyFillsNeitherLogNorRecord(t *testing.T) {
	var log lines
	r := newRig(t, log.to)
	h := r.enrolled("web-01")
	first := r.connect(h)
	r.acked(first.epoch)
	old := *h
	old.lastEpoch = first.epoch - 1
	before := r.db.Snapshot().Version
	for i := range 12 {
		r.refused(old.as(fmt.Sprint("older ", i)), "quarantined")
		ref := h.as(fmt.Sprint("beside ", i))
		ref.lastEpoch = first.epoch
		if _, refuse, err := r.dial(ref); err == nil || refuse == nil {
			t.Fatalf("copy %d: %v", i, err)
		}
	}
	if n := r.db.Snapshot().Version - before; n > 4 {
		t.Errorf("%d changes of the policy by refusals", n)
	}
	first.told(t)
	r.offline()
	for i := range 12 {
		h.facts.Hostname = fmt.Sprint("name-", i)
		l := r.line(h)
		h.lastEpoch = l.welcome.Epoch
		for range 10 {
			l.say(t, `{"type":"log","level":"info","message":"chatter"}`)
		}
		l.say(t, `{"type":"goodbye","reason":"for now"}`)
	}
	eventually(t, "the last lines", func() bool { return len(log.with("chatter")) >= 60 && len(log.with("agent says goodbye")) == 5 })
	for word, most := range map[string]int{"hostname has changed": 5, "agent says goodbye": 5, "chatter": 60, "agent refused": 10} {
		if n := len(log.with(word)); n > most {
			t.Errorf("%d lines of %q", n, word)
		}
	}
}
