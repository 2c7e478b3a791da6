package cluster

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// listener is a Bus without NATS: the test says the news.
func listener() *Bus {
	b := &Bus{
		cfg:     Config{Local: presence.New(nil), Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Online: func(fleet.AgentID, int64) {}, Cancel: func(fleet.CallID) {}},
		replica: "me", words: make(chan struct{}, 1), others: map[string]*other{}, past: map[string]past{}, where: map[fleet.AgentID]place{},
		remotes: map[place]*remote{}, opens: map[string]time.Time{}, told: map[fleet.AgentID]entry{},
	}
	b.connected.Store(1)
	return b
}

func at(id string, epoch int64) entry {
	return entry{Agent: fleet.AgentID(id), Generation: 1, Epoch: epoch, SinceUS: epoch}
}

// asks counts the hellos that b said, and takes them.
func (b *Bus) asks() (n int) {
	for _, s := range b.unsaid {
		if s.Kind == newsHello {
			n++
		}
	}
	b.unsaid = nil
	return n
}

// TestAnOlderConnectionNeverReplacesANewer: whatever order news comes in, from whomever.
func TestAnOlderConnectionNeverReplacesANewer(t *testing.T) {
	b := listener()
	b.hear(&news{Kind: newsAll, From: "a", Seq: 1, Part: 1, Parts: 1, Agents: []entry{at("web", 7)}})
	for i, n := range []*news{
		{Kind: newsUp, From: "b", Seq: 1, Agents: []entry{at("web", 6)}},
		{Kind: newsAll, From: "c", Seq: 1, Part: 1, Parts: 1, Agents: []entry{at("web", 5)}},
		{Kind: newsDown, From: "b", Seq: 2, Agents: []entry{at("web", 6)}},
		{Kind: newsDown, From: "a", Seq: 2, Agents: []entry{at("web", 6)}}, // of an older one
		{Kind: newsBye, From: "c", Seq: 2},
	} {
		b.hear(n)
		if w := b.where["web"]; w.replica != "a" || w.epoch != 7 {
			t.Errorf("news %d: it's at %+v", i, w)
		}
	}
	b.hear(&news{Kind: newsUp, From: "b", Seq: 3, Agents: []entry{at("web", 8)}})
	b.hear(&news{Kind: newsDown, From: "a", Seq: 3, Agents: []entry{at("web", 7)}}) // the late close
	if w := b.where["web"]; w.replica != "b" || w.epoch != 8 {
		t.Errorf("after the old one's late close it's at %+v", w)
	}
	b.hear(&news{Kind: newsDown, From: "b", Seq: 4, Agents: []entry{at("web", 8)}})
	if online, _ := b.Online("web"); online {
		t.Error("online after both ended")
	}
}

// TestOldNewsBringsNobodyBack: news that's said again is refused, also of a replica that was
// forgotten since.
func TestOldNewsBringsNobodyBack(t *testing.T) {
	b := listener()
	up := &news{Kind: newsUp, From: "a", Seq: 5, Agents: []entry{at("web", 1)}}
	b.hear(up)
	b.hear(&news{Kind: newsDown, From: "a", Seq: 6, Agents: []entry{at("web", 1)}})
	b.hear(up)
	b.hear(&news{Kind: newsBye, From: "a", Seq: 7})
	b.hear(up)
	b.hear(&news{Kind: newsUp, From: "a", Seq: 8, Agents: []entry{at("web", 9)}}) // after its own bye
	b.hear(&news{Kind: newsUp, From: "b", Seq: 9, Agents: []entry{at("db", 1)}})
	b.mu.Lock()
	b.forget("b", goneSilently)
	b.mu.Unlock()
	b.hear(&news{Kind: newsUp, From: "b", Seq: 9, Agents: []entry{at("db", 1)}})
	if n := b.refused.Load(); n != 4 || len(b.where) != 0 || len(b.others) != 0 {
		t.Errorf("%d refused, %v, %v", n, b.where, b.others)
	}
	b.hear(&news{Kind: newsUp, From: "b", Seq: 10, Agents: []entry{at("db", 1)}}) // it was only silent
	if online, _ := b.Online("db"); !online {
		t.Error("a replica that is back isn't heard")
	}
}

// TestMissedNewsIsAskedFor: a gap, a wrong count and a lost part each lead to asking for
// everything, and everything makes it right.
func TestMissedNewsIsAskedFor(t *testing.T) {
	for name, said := range map[string][]*news{
		"a gap":               {{Kind: newsUp, Seq: 3, Agents: []entry{at("x", 1)}}},
		"as many, but others": {{Kind: newsBeat, Seq: 4, Count: 1}},
		"a wrong count":       {{Kind: newsBeat, Seq: 2, Count: 2}},
		"a lost part": {{Kind: newsAll, Seq: 2, Part: 1, Parts: 3, Agents: []entry{at("x", 1)}}, {Kind: newsAll, Seq: 4, Part: 3, Parts: 3, Agents: []entry{at("z", 1)}},
			{Kind: newsBeat, Seq: 5, Count: 3}},
	} {
		b := listener()
		b.hear(&news{Kind: newsAll, From: "a", Seq: 1, Part: 1, Parts: 1, Agents: []entry{at("web", 1)}})
		if n := b.asks(); n != 0 {
			t.Errorf("%s: asked %d times after everything", name, n)
		}
		for _, n := range said {
			n.From = "a"
			b.hear(n)
		}
		if n := b.asks(); n != 1 {
			t.Errorf("%s: asked %d times", name, n)
		}
		if online, _ := b.Online("web"); !online {
			t.Errorf("%s: what was known is forgotten before all is known", name)
		}
		b.hear(&news{Kind: newsAll, From: "a", Seq: 20, Part: 1, Parts: 2, Agents: []entry{at("y", 1)}})
		b.hear(&news{Kind: newsAll, From: "a", Seq: 21, Part: 2, Parts: 2, Agents: []entry{at("z", 1)}})
		if len(b.where) != 2 || b.where["y"].epoch != 1 || b.where["z"].epoch != 1 || b.others["a"].missed {
			t.Errorf("%s: %v, missed %t", name, b.where, b.others["a"].missed)
		}
	}
}

// TestEverythingIsToldInParts: more agents than one message holds arrive whole.
func TestEverythingIsToldInParts(t *testing.T) {
	from, to := listener(), listener()
	from.replica = "a"
	const many = 2*perNews + 1
	for i := range many {
		e := at(fmt.Sprintf("a-%d", i), 1)
		from.told[e.Agent] = e
	}
	from.hear(&news{Kind: newsHello, From: "me", Seq: 1})
	if len(from.unsaid) != 3 {
		t.Fatalf("%d messages", len(from.unsaid))
	}
	for i, n := range from.unsaid {
		if to.hear(n); len(to.where) != 0 && i < 2 {
			t.Error("a part counts")
		}
	}
	if len(to.where) != many {
		t.Errorf("%d agents", len(to.where))
	}
}

// TestASilentReplicaIsForgotten: its agents count as offline; not while NATS is away, when
// nobody can be heard.
func TestASilentReplicaIsForgotten(t *testing.T) {
	b := listener()
	b.hear(&news{Kind: newsUp, From: "a", Seq: 1, Agents: []entry{at("web", 1)}})
	later := time.Now().Add(lostAfter + time.Second)
	b.connected.Store(0)
	b.beat(later)
	if online, _ := b.Online("web"); online || len(b.others) != 1 || b.Why() == "" {
		t.Error("without NATS: it's online, or forgotten, or nobody says why")
	}
	b.connected.Store(1)
	if online, _ := b.Online("web"); !online || b.Why() != "" {
		t.Error("NATS is back")
	}
	b.beat(later)
	if len(b.others)+len(b.where) != 0 {
		t.Error("a silent replica is still believed")
	}
}

// TestAnEndElsewhereThatBrokeOff is known for a moment, unless it was an older connection's, the
// agent said that it goes, or NATS is gone and with it the way to wherever it connects.
func TestAnEndElsewhereThatBrokeOff(t *testing.T) {
	b := listener()
	b.hear(&news{Kind: newsAll, From: "a", Seq: 1, Part: 1, Parts: 1, Agents: []entry{at("cut", 7), at("gone", 7), at("moved", 7)}})
	b.hear(&news{Kind: newsBroke, From: "a", Seq: 2, Agents: []entry{at("cut", 7), at("moved", 6)}})
	b.hear(&news{Kind: newsDown, From: "a", Seq: 3, Agents: []entry{at("cut", 7)}})
	b.hear(&news{Kind: newsDown, From: "a", Seq: 4, Agents: []entry{at("gone", 7)}})
	b.hear(&news{Kind: newsDown, From: "a", Seq: 5, Agents: []entry{at("moved", 6)}})
	for id, want := range map[fleet.AgentID]bool{"cut": true, "gone": false, "moved": false} {
		if b.BrokeOff(id) != want {
			t.Errorf("%s: %t", id, !want)
		}
	}
	b.connected.Store(0)
	if b.BrokeOff("cut") {
		t.Error("without NATS")
	}
}
