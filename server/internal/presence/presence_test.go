package presence_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// silent is a pipe on which nothing comes.
type silent struct{ closed chan struct{} }

func (p silent) Read(context.Context) (bool, []byte, error) {
	<-p.closed
	return false, nil, protocol.ErrCut
}
func (p silent) Write(context.Context, bool, []byte) error { return nil }
func (p silent) Close(int, string) error                   { close(p.closed); return nil }

func entry(t *testing.T, id string, generation, epoch int64) presence.Entry {
	s := mux.New(silent{make(chan struct{})}, mux.Config{})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(context.Background()) }()
	t.Cleanup(func() { s.Close(0, ""); <-done })
	return presence.Entry{Agent: fleet.AgentID(id), Generation: generation, Epoch: epoch, Since: time.Unix(epoch, 0), Session: s}
}

func TestEpochsDecide(t *testing.T) {
	var changes []bool
	r := presence.New(func(_ fleet.AgentID, online bool) { changes = append(changes, online) })
	first, second := entry(t, "web-01", 1, 5), entry(t, "web-01", 1, 6)
	if old, ok := r.Register(first); !ok || old.Session != nil {
		t.Error("the first")
	}
	if _, ok := r.Route("web-01", 1); ok || r.Ready("web-01", 4) || !r.Arriving("web-01") {
		t.Error("it's online before it's ready")
	}
	if !r.Ready("web-01", 5) || r.Ready("web-01", 5) || r.Arriving("web-01") {
		t.Error("it isn't ready once")
	}
	if old, ok := r.Register(second); !ok || old.Epoch != 5 {
		t.Error("the second")
	}
	if online, _, _ := r.State("web-01"); online || r.Ready("web-01", 5) || !r.Ready("web-01", 6) {
		t.Error("the second is ready by the first's word")
	}
	if _, ok := r.Register(entry(t, "web-01", 1, 5)); ok {
		t.Error("an older epoch took over")
	}
	if r.Unregister("web-01", 5, true) {
		t.Error("a stale close ended the presence")
	}
	if c, ok := r.Route("web-01", 1); !ok || c != second.Session {
		t.Error("not the second's tunnel")
	}
	if online, since, epoch := r.State("web-01"); !online || epoch != 6 || !since.Equal(time.Unix(6, 0)) {
		t.Errorf("%t %s %d", online, since, epoch)
	}
	if r.BrokeOff("web-01") || !r.Unregister("web-01", 6, true) || r.Len() != 0 {
		t.Error("the present one's close")
	}
	if !slices.Equal(changes, []bool{true, false, true, false}) {
		t.Errorf("changes %v", changes)
	}
}

func TestRouteIsExact(t *testing.T) {
	r := presence.New(nil)
	e := entry(t, "web-01", 2, 1)
	r.Register(e)
	r.Ready("web-01", 1)
	for _, c := range []struct {
		id  string
		gen int64
		ok  bool
	}{{"web-01", 2, true}, {"web-01", 1, false}, {"web-01", 3, false}, {"web-0", 2, false}, {"web-011", 2, false}, {"Web-01", 2, false}, {"", 2, false}} {
		if _, ok := r.Route(fleet.AgentID(c.id), c.gen); ok != c.ok {
			t.Errorf("%s generation %d: %t", c.id, c.gen, ok)
		}
	}
	e.Session.Close(0, "")
	if _, ok := r.Route("web-01", 2); ok {
		t.Error("routed to a tunnel that has ended")
	}
	if len(r.List()) != 0 {
		t.Error("listed")
	}
}

func TestCloseAgentAndDrain(t *testing.T) {
	r := presence.New(nil)
	a, b := entry(t, "a", 1, 1), entry(t, "b", 1, 1)
	r.Register(a)
	r.Register(b)
	if l := r.List(); len(l) != 2 || l[0].Agent != "a" {
		t.Errorf("%v", l)
	}
	if r.CloseAgent("c", 4410, "x") || !r.CloseAgent("a", 4410, "removed") || a.Session.Alive() || !b.Session.Alive() {
		t.Error("close")
	}
	r.Drain("restart", func(int, int) time.Duration { return time.Second })
	<-b.Session.(*mux.Session).Done()
	if _, ok := r.Register(entry(t, "d", 1, 1)); ok {
		t.Error("registered after the drain")
	}
}

// TestBrokeOff: of an agent whose tunnel broke off it's known for a moment; of one that said
// that it goes, or whose tunnel calls never went to, it isn't.
func TestBrokeOff(t *testing.T) {
	r := presence.New(nil)
	for _, c := range []struct {
		id           string
		ready, broke bool
	}{{"cut", true, true}, {"gone", true, false}, {"arriving", false, true}} {
		e := entry(t, c.id, 1, 1)
		r.Register(e)
		if c.ready {
			r.Ready(e.Agent, 1)
		}
		if r.BrokeOff(e.Agent) {
			t.Errorf("%s: before its end", c.id)
		}
		e.Session.Close(0, "")
		if r.BrokeOff(e.Agent) != c.ready {
			t.Errorf("%s: between its end and its being noted", c.id)
		}
		r.Unregister(e.Agent, 1, c.broke)
		if r.BrokeOff(e.Agent) != (c.ready && c.broke) {
			t.Errorf("%s: after its end", c.id)
		}
	}
}

// TestEndsAreForgotten after their time, one by one.
func TestEndsAreForgotten(t *testing.T) {
	var e presence.Ends
	now := time.Now()
	later := now.Add(presence.EndsFor / 2)
	e.Note("a", now)
	e.Note("b", later)
	end := now.Add(presence.EndsFor)
	if !e.Recent("a", end.Add(-1)) || e.Recent("a", end) || !e.Recent("b", end) || e.Recent("c", now) {
		t.Error("not for its time")
	}
	e.Note("a", end) // sweeps; b's time isn't over
	if !e.Recent("a", end) || !e.Recent("b", end) {
		t.Error("swept too early")
	}
}
