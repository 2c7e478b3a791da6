// Package cluster joins replicas of one server over NATS: each knows which replica holds
// which agent, and a call from elsewhere goes to that replica through a pipe of its own, on
// which protocol/mux runs as it does on an agent's tunnel. So a call has the same meaning,
// the same errors and the same credit over a hop as without one; only its transport is
// another.
//
// What travels is sealed with keys that follow from the server's key, which the replicas
// share: NATS carries it and can neither read nor say anything. Nothing is kept there; what
// must last is in the database.
package cluster

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/session"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// Config sets up a Bus. All of it is required, except as said.
type Config struct {
	// Replica names this process among the others and in logs: new at each start, without
	// dots and spaces, for it's part of NATS' subjects.
	Replica string
	// URL is NATS' address: nats://HOST:PORT or tls://HOST:PORT, with credentials if it wants
	// them.
	URL string
	// ServerKey is the server's key, the same on every replica.
	ServerKey ed25519.PrivateKey
	// Local knows the agents whose tunnels end here.
	Local *presence.Registry
	// Online hears that an agent came online on another replica; it must not block.
	Online func(id fleet.AgentID, generation int64)
	// Renew, if not nil, hears that a copy of an agent's identity was seen beside the
	// connection of this epoch, which may be here; it must not block.
	Renew func(id fleet.AgentID, epoch int64)
	// Cancel hears that a caller of another replica cancels a call, which may be under way
	// here; it must not block.
	Cancel func(id fleet.CallID)
	// Members counts the other replicas that are to be heard, by the database; nil: that isn't
	// known, and none is waited for.
	Members func(ctx context.Context) (int, error)
	// Sessions keeps the page's ended sessions, of all replicas; nil: there's no page.
	Sessions *session.Keeper
	// Trace makes the spans of hops; nil makes none.
	Trace *tracing.Tracer
	// Metrics counts faults inside; nil counts nothing.
	Metrics *obs.Metrics
	Log     *slog.Logger
}

// Times of the news between replicas.
const (
	beatEvery = 2 * time.Second
	// lostAfter is how long a silent replica's agents are still believed to be there.
	lostAfter = 10 * time.Second
	// openWait bounds the opening of a pipe.
	openWait = 2 * time.Second
	// pipeAlive is the keep-alive of pipes: a replica that was stopped is missed in twice that.
	pipeAlive = 5 * time.Second
	// idleAfter is how long a pipe without calls is kept.
	idleAfter = time.Minute
	// stuckAfter is how long NATS may take nothing before the connection to it counts as lost.
	stuckAfter = 5 * time.Second
	// logEvery spaces the log's lines about refused messages: whoever can publish on NATS may
	// send any number of them.
	logEvery = 5 * time.Second
	// filesLook is how often AwaitFiles looks.
	filesLook = 50 * time.Millisecond
	// answersFor is how long Close waits for answers to other replicas' calls to go out.
	answersFor = time.Second
	// answersLook is how often it looks.
	answersLook = 5 * time.Millisecond
)

// Stats are numbers for metrics: counts are since the start.
type Stats struct {
	Refused     int64 // messages that weren't acted on; of them
	Forged      int64 // not sealed by a replica of this deployment, or changed
	Unreadable  int64 // a replica of another version said what isn't understood here
	Replayed    int64 // came twice
	Stale       int64 // came too late
	Hops        int64 // calls that went to another replica
	Served      int64 // calls that came from another replica
	Out, In     int64 // those that are under way now, either way
	Pipes       int   // that are open, both ways
	Disconnects int64 // times that NATS was lost
	Overtaken   int64 // connections of agents here that ended because another replica had a newer one
	Replicas    int   // others that are known
	Agents      int   // agents whose newest known connection is on one of them
}

// Bus is this replica's place among the others. Connect makes one; Start lets it hear; Run
// keeps it; Close ends it.
type Bus struct {
	cfg     Config
	keys    *keys
	replica string // Config.Replica
	nc      *nats.Conn
	prefix  string // of subjects

	life   sync.Mutex      // guards the end of ctx against new goroutines; held last
	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	all    sync.WaitGroup
	wake   chan struct{} // one token: some local agent changed
	words  chan struct{} // one token: there's news to send

	// mu is held for moments only, never over a call into NATS, which may be stuck: local
	// agents are found under it.
	mu      sync.Mutex
	dirty   map[fleet.AgentID]bool
	told    map[fleet.AgentID]entry // what the others were told of this replica's agents
	unsaid  []*news                 // told and not sent yet
	left    bool                    // nothing is said any more
	others  map[string]*other       // by replica
	past    map[string]past         // replicas that were forgotten
	where   map[fleet.AgentID]place // the newest connection of agents elsewhere
	ends    presence.Ends           // of connections elsewhere that broke off
	remotes map[place]*remote
	pipes   map[string]*pipe     // by the last word of their subject here
	opens   map[string]time.Time // nonces of openings, and when they came
	seq     int64
	asked   time.Time // when the others were asked for everything

	connected, warned atomic.Int64 // connected: 1 or 0; warned: when a refusal was logged, in ns
	catching          atomic.Int64 // how many catchUps are under way
	refused, hops     atomic.Int64
	files             atomic.Int64 // that pass between other replicas and agents here
	noFiles           atomic.Bool  // none begins any more
	owed              atomic.Int64 // answers to other replicas that aren't out

	forged, unreadable, replayed, stale, served, outNow, inNow, disconnects, overtaken atomic.Int64
}

// Connect joins the other replicas. A NATS that can't be reached now is waited for, as one that
// is lost later; it fails for a URL that is none, and for credentials that NATS refuses.
func Connect(cfg Config) (*Bus, error) {
	k, err := newKeys(cfg.ServerKey)
	if err != nil {
		return nil, err
	}
	b := &Bus{
		cfg: cfg, keys: k, replica: cfg.Replica, prefix: "drover." + k.name + ".", wake: make(chan struct{}, 1), words: make(chan struct{}, 1),
		dirty: map[fleet.AgentID]bool{}, told: map[fleet.AgentID]entry{}, others: map[string]*other{}, past: map[string]past{},
		where: map[fleet.AgentID]place{}, remotes: map[place]*remote{}, pipes: map[string]*pipe{}, opens: map[string]time.Time{},
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if err := b.reachNATS(); err != nil {
		return nil, err
	}
	b.do(b.speak)
	return b, nil
}

// caught is what becomes of a panic over one message or one pipe: it costs that alone. A message
// counts as lost then, which is nothing new between replicas: what follows from it is asked for
// again. The loops that tell and keep what this replica is to the others aren't contained: a
// replica that no longer does so is better gone.
func (b *Bus) caught(what string, attrs ...any) func(*fault.Panic) {
	return func(p *fault.Panic) {
		b.cfg.Metrics.Caught(b.cfg.Log, obs.InPipe, p, append(attrs, "what", what)...)
	}
}

// each is a subscription's handler that f is called by.
func (b *Bus) each(what string, f func(*nats.Msg)) nats.MsgHandler {
	return func(m *nats.Msg) {
		defer fault.Catch(b.caught(what))
		f(m)
	}
}

// do runs f in a goroutine that Close waits for; false when the bus has ended.
func (b *Bus) do(f func()) bool {
	b.life.Lock()
	defer b.life.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.all.Go(f)
	return true
}

// Start subscribes to what this replica hears: the news, openings of pipes to it, and the
// pipes themselves. From then on the functions of the Config are called.
func (b *Bus) Start() error {
	if _, err := b.nc.Subscribe(b.prefix+"news", b.each("news", b.onNews)); err != nil {
		return err
	}
	if _, err := b.nc.Subscribe(b.prefix+"open."+b.replica, b.each("an opening", b.onOpen)); err != nil {
		return err
	}
	if _, err := b.nc.Subscribe(b.prefix+"pipe."+b.replica+".*", b.each("a pipe's message", b.onPipe)); err != nil {
		return err
	}
	if b.Connected() {
		if err := b.nc.FlushTimeout(stuckAfter); err != nil { // it's told again at the next connection
			b.cfg.Log.Warn("NATS doesn't answer", "error", err)
		}
	}
	return nil
}

// Run tells the others of this replica's agents until ctx ends.
func (b *Bus) Run(ctx context.Context) {
	b.greet()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
			b.tell()
		case now := <-beat.C:
			b.beat(now)
		}
	}
}

// Close leaves the others, who learn of it at once. Calls over its pipes end as cut, but those
// that are answered by then: their answers go out.
func (b *Bus) Close() {
	ctx, cancel := context.WithTimeout(b.ctx, answersFor)
	defer cancel()
	untilNone(ctx, &b.owed, answersLook)
	b.mu.Lock()
	b.say(&news{Kind: newsBye})
	b.left = true
	b.mu.Unlock()
	b.life.Lock()
	b.cancel() // with it the sessions of all pipes end
	b.life.Unlock()
	b.all.Wait()
	if b.Connected() {
		_ = b.nc.FlushTimeout(time.Second) // without NATS nobody hears it
	}
	b.nc.Close()
}

// AwaitFiles waits, at most until ctx ends, until no file passes through here from or to
// another replica, its answer included: one that is cut off can't be asked for, as a call can.
// From its end on none begins.
func (b *Bus) AwaitFiles(ctx context.Context) {
	untilNone(ctx, &b.files, filesLook)
	b.noFiles.Store(true)
	untilNone(ctx, &b.files, filesLook) // one that began in that moment
}

// untilNone looks every so often until a count is zero, at most until ctx ends.
func untilNone(ctx context.Context, count *atomic.Int64, every time.Duration) {
	look := time.NewTicker(every)
	defer look.Stop()
	for count.Load() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// Stats returns the counters.
func (b *Bus) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{
		Refused: b.refused.Load(), Forged: b.forged.Load(), Unreadable: b.unreadable.Load(), Replayed: b.replayed.Load(), Stale: b.stale.Load(), Hops: b.hops.Load(), Served: b.served.Load(),
		Out: b.outNow.Load(), In: b.inNow.Load(), Pipes: len(b.pipes), Disconnects: b.disconnects.Load(), Overtaken: b.overtaken.Load(),
		Replicas: len(b.others), Agents: len(b.where),
	}
}

// Route implements dispatch.Router: the agent's tunnel here, or the way to the replica that
// has a newer one.
func (b *Bus) Route(id fleet.AgentID, generation int64) (dispatch.Caller, bool) {
	e, here := b.cfg.Local.Online(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	at, there := b.where[id]
	if here && (!there || e.Epoch >= at.epoch) {
		return e.Session, e.Generation == generation
	}
	if !there || !b.Connected() {
		return nil, false
	}
	if o := b.others[at.replica]; o == nil || o.agents[id].Generation != generation {
		return nil, false
	}
	return b.remote(at), true
}

// BrokeOff tells that a connection of the agent, here or elsewhere, broke off a moment ago: its
// next one may be there and not be known here yet.
func (b *Bus) BrokeOff(id fleet.AgentID) bool {
	return b.cfg.Local.BrokeOff(id) || b.Connected() && b.ends.Recent(id, time.Now())
}

// Online tells whether the agent is online on any replica, and since when.
func (b *Bus) Online(id fleet.AgentID) (bool, time.Time) {
	if online, since, _ := b.cfg.Local.State(id); online {
		return true, since
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.where[id]
	o := b.others[at.replica]
	if !ok || o == nil || !b.Connected() {
		return false, time.Time{}
	}
	return true, time.UnixMicro(o.agents[id].SinceUS)
}

// refuse counts a message that isn't acted on.
func (b *Bus) refuse(what string, err error) {
	n := b.refused.Add(1)
	switch {
	case errors.Is(err, errReplay):
		b.replayed.Add(1)
	case errors.Is(err, errStale):
		b.stale.Add(1)
	case errors.Is(err, errUnreadable):
		b.unreadable.Add(1)
	default:
		b.forged.Add(1)
	}
	now, last := time.Now().UnixNano(), b.warned.Load()
	if now-last > int64(logEvery) && b.warned.CompareAndSwap(last, now) {
		b.cfg.Log.Warn("a message between replicas was refused", "what", what, "error", err, "refused_so_far", n)
	}
}
