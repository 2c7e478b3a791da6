package cluster

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Kinds of news.
const (
	newsHello  = "hello"  // a replica is new, or missed something: tell it everything
	newsAll    = "all"    // all agents of a replica, in parts
	newsUp     = "up"     // an agent's new connection
	newsDown   = "down"   // the end of one
	newsBeat   = "beat"   // the replica lives, and has so many agents
	newsBye    = "bye"    // the replica stops
	newsCancel = "cancel" // a call is to be ended, wherever it's under way
	newsRenew  = "renew"  // an agent shall connect anew: a copy of it was seen
	// Since version 2:
	newsBroke = "broke" // of connections that end next: the agents may be connecting elsewhere
	newsEnded = "ended" // sessions of the page that ended before their time: Call is a word
)

// news is what a replica tells all others. Its members are those of version 1, whose builds
// refuse any other and pass over kinds that they don't know: so what is new is a kind, and
// what it says is in these members (ADR 22).
type news struct {
	Kind   string  `json:"kind"`
	From   string  `json:"from"`
	Seq    int64   `json:"seq"` // rises with each of a replica's news
	AtUS   int64   `json:"at_us"`
	Agents []entry `json:"agents,omitempty"`
	Part   int     `json:"part,omitzero"`
	Parts  int     `json:"parts,omitzero"`
	Count  int     `json:"count,omitzero"`
	Call   string  `json:"call,omitempty"`
}

// entry is one agent's connection.
type entry struct {
	Agent      fleet.AgentID `json:"agent"`
	Generation int64         `json:"generation"`
	Epoch      int64         `json:"epoch"`
	Instance   string        `json:"instance"` // of the agent's process
	Boot       string        `json:"boot"`
	Version    int           `json:"version"`
	SinceUS    int64         `json:"since_us"`
}

// other is what's known of another replica.
type other struct {
	agents map[fleet.AgentID]entry
	parts  []entry // of an "all" that isn't whole yet
	part   int     // how many parts of it came
	seq    int64
	heard  time.Time
	missed bool // some of its news was lost: everything is asked for
	asks   int  // how often it was, in vain until now
	asked  time.Time
}

// past is a replica that was forgotten: its old news, said again, must not bring it back.
type past struct {
	seq int64
	at  time.Time
}

// place is one connection of an agent on another replica.
type place struct {
	replica string
	agent   fleet.AgentID
	epoch   int64
}

const (
	// perNews is how many agents one message tells of: about 200 KB at most.
	perNews = 400
	// oldNews is how old news may be: clocks of replicas must agree well within it.
	oldNews = 10 * time.Second
)

// maxUnsaid bounds what waits for NATS. What is left out is missed by its number.
const maxUnsaid = 4096

// say queues news in the order of its numbers. b.mu is held.
func (b *Bus) say(n *news) {
	if b.left {
		return
	}
	b.seq++
	n.From, n.Seq, n.AtUS = b.replica, b.seq, time.Now().UnixMicro()
	if len(b.unsaid) < maxUnsaid {
		b.unsaid = append(b.unsaid, n)
	}
	select {
	case b.words <- struct{}{}:
	default:
	}
}

// speak sends what was said, until the bus ends and all of it is out.
func (b *Bus) speak() {
	for {
		over := b.ctx.Err() != nil
		b.mu.Lock()
		out := b.unsaid
		b.unsaid = nil
		b.mu.Unlock()
		for _, n := range out {
			plain, err := json.Marshal(n)
			if err != nil {
				continue // strings and numbers
			}
			// Without NATS nobody hears it; whoever is back asks for everything.
			_ = b.nc.Publish(b.prefix+"news", b.keys.seal(b.prefix+"news", plain))
		}
		if over {
			return
		}
		select {
		case <-b.words:
		case <-b.ctx.Done():
		}
	}
}

// greet asks the others for everything and tells them everything.
func (b *Bus) greet() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.askAll()
	b.tellAll()
	b.tellEnded()
}

// askAll asks the others for everything. b.mu is held.
func (b *Bus) askAll() {
	b.asked = time.Now()
	b.say(&news{Kind: newsHello})
}

// tellAll tells the others everything. b.mu is held.
func (b *Bus) tellAll() {
	all := make([]entry, 0, len(b.told))
	for _, e := range b.told {
		all = append(all, e)
	}
	parts := max(1, (len(all)+perNews-1)/perNews)
	for i := range parts {
		b.say(&news{Kind: newsAll, Part: i + 1, Parts: parts, Agents: all[min(len(all), i*perNews):min(len(all), (i+1)*perNews)]})
	}
}

// Changed tells that an agent connected here, is ready, or went. It doesn't block.
func (b *Bus) Changed(id fleet.AgentID) {
	b.mu.Lock()
	b.dirty[id] = true
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// tell tells the others what changed here.
func (b *Bus) tell() {
	b.mu.Lock()
	dirty := b.dirty
	b.dirty = map[fleet.AgentID]bool{}
	b.mu.Unlock()
	b.tellBroken(dirty)
	for id := range dirty {
		now, here := b.cfg.Local.Online(id)
		b.mu.Lock()
		was, told := b.told[id]
		switch {
		case here:
			e := entry{Agent: id, Generation: now.Generation, Epoch: now.Epoch, Instance: now.Instance,
				Boot: now.Session.Boot(), Version: now.Session.Version(), SinceUS: now.Since.UnixMicro()}
			if e != was {
				b.told[id] = e
				b.say(&news{Kind: newsUp, Agents: []entry{e}})
			}
		case told:
			delete(b.told, id)
			b.say(&news{Kind: newsDown, Agents: []entry{was}})
		}
		b.mu.Unlock()
	}
}

// beat tells that this replica lives, and forgets those that don't.
func (b *Bus) beat(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.say(&news{Kind: newsBeat, Count: len(b.told)})
	for name, p := range b.past {
		if now.Sub(p.at) > 3*oldNews { // by then it's too old to be heard
			delete(b.past, name)
		}
	}
	for nonce, at := range b.opens {
		if now.Sub(at) > 3*acceptFor {
			delete(b.opens, nonce)
		}
	}
	for at, r := range b.remotes {
		if r.idle(now) {
			b.drop(at, "idle")
		}
	}
	if !b.Connected() {
		return
	}
	for name, o := range b.others {
		if now.Sub(o.heard) > lostAfter {
			b.cfg.Log.Warn("another replica is silent; its agents count as offline", "replica", name, "agents", len(o.agents))
			b.forget(name, goneSilently)
		}
	}
}

// forget drops a replica and its agents. why is drop's. b.mu is held.
func (b *Bus) forget(name, why string) {
	o := b.others[name]
	if o == nil {
		return
	}
	delete(b.others, name)
	b.past[name] = past{o.seq, time.Now()}
	for id := range o.agents {
		b.place(id)
	}
	for at := range b.remotes {
		if at.replica == name {
			b.drop(at, why)
		}
	}
}

// place finds an agent's newest connection on another replica. b.mu is held.
func (b *Bus) place(id fleet.AgentID) {
	delete(b.where, id)
	for name, o := range b.others {
		if e, ok := o.agents[id]; ok && e.Epoch > b.where[id].epoch {
			b.where[id] = place{name, id, e.Epoch}
		}
	}
}

func (b *Bus) onNews(m *nats.Msg) {
	plain, err := b.keys.unseal(m.Subject, m.Data)
	if err != nil {
		b.refuse("news", err)
		return
	}
	n, err := readNews(plain)
	if err != nil {
		b.refuse("news", err)
	}
	if n == nil {
		return
	}
	if n.From == b.replica {
		return
	}
	if age := time.Since(time.UnixMicro(n.AtUS)); age > oldNews || age < -oldNews {
		b.refuse("news", errStale)
		return
	}
	b.hear(n)
}

// hear takes another replica's news.
func (b *Bus) hear(n *news) {
	came, ok := b.take(n)
	switch {
	case !ok:
		b.refuse("news", errReplay)
	case n.Kind == newsCancel:
		b.cfg.Cancel(fleet.CallID(n.Call))
	case n.Kind == newsRenew && b.cfg.Renew != nil:
		for _, e := range n.Agents {
			b.cfg.Renew(e.Agent, e.Epoch)
		}
	case n.Kind == newsEnded && b.cfg.Sessions != nil:
		b.heedEnded(n.Call)
	}
	b.newer(came)
}

// take notes what news says and returns the connections that are new; false when it's old.
func (b *Bus) take(n *news) (came []entry, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.others[n.From]
	if o == nil {
		o = &other{agents: map[fleet.AgentID]entry{}, seq: b.past[n.From].seq, missed: true}
	}
	if n.Seq <= o.seq {
		return nil, false
	}
	o.missed = o.missed || n.Seq != o.seq+1
	o.heard = time.Now()
	b.others[n.From] = o
	switch n.Kind {
	case newsUp:
		came = b.put(n.From, o, n.Agents)
	case newsDown:
		for _, e := range n.Agents {
			if o.agents[e.Agent].Epoch == e.Epoch {
				delete(o.agents, e.Agent)
				b.place(e.Agent)
			}
		}
	case newsBroke:
		for _, e := range n.Agents {
			if o.agents[e.Agent].Epoch == e.Epoch {
				b.ends.Note(e.Agent, time.Now())
			}
		}
	case newsAll:
		came = b.putAll(n, o)
	case newsUnread:
		o.missed = true
	case newsHello:
		b.tellAll()
		b.tellEnded()
	case newsBeat:
		o.missed = o.missed || n.Count != len(o.agents)
	case newsBye:
		o.seq = math.MaxInt64 // it says nothing any more
		b.forget(n.From, byPipe)
		return nil, true
	}
	o.seq = n.Seq // not before: the next one tells that it's missing otherwise
	// Everything follows a hello by itself.
	if o.missed && n.Kind != newsHello && n.Kind != newsAll && o.mayAsk(b.asked) {
		b.askAll()
		o.asked, o.asks = b.asked, o.asks+1
	}
	return came, true
}

// put notes agents of another replica and returns them. b.mu is held.
func (b *Bus) put(from string, o *other, agents []entry) []entry {
	for _, e := range agents {
		o.agents[e.Agent] = e
		if e.Epoch > b.where[e.Agent].epoch {
			b.where[e.Agent] = place{from, e.Agent, e.Epoch}
		}
	}
	return agents
}

// putAll takes one part of all agents of another replica; with the last one they replace
// what was known. It returns those that are new. b.mu is held.
func (b *Bus) putAll(n *news, o *other) []entry {
	if n.Part == 1 {
		o.parts, o.part = nil, 0
	}
	if n.Part != o.part+1 {
		return nil // one was lost: everything is asked for
	}
	o.parts, o.part = append(o.parts, n.Agents...), n.Part
	if n.Part != n.Parts {
		return nil
	}
	old := o.agents
	o.agents = map[fleet.AgentID]entry{}
	came := b.put(n.From, o, o.parts)
	o.parts, o.part, o.missed, o.asks = nil, 0, false, 0
	for id := range old {
		b.place(id)
	}
	return slices.DeleteFunc(came, func(e entry) bool { return old[e.Agent] == e })
}

// newer acts on agents that connected elsewhere: an older connection here is over, and who
// waits for the agent goes on.
func (b *Bus) newer(agents []entry) {
	for _, e := range agents {
		if here, ok := b.cfg.Local.Lookup(e.Agent); ok && here.Epoch < e.Epoch {
			b.overtaken.Add(1)
			here.Session.Close(protocol.CloseReplaced, "a newer connection of this agent took over on another replica")
		}
		b.cfg.Online(e.Agent, e.Generation)
	}
}

// lastWord is the last part of a subject.
func lastWord(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
