package dispatch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/limit"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// DefaultWait is how long a caller waits for an answer before it gets a handle: clients
// give up after 60 s.
const DefaultWait = 50 * time.Second

// queuedWait is how long a caller that didn't say waits for a call that is queued.
const queuedWait = time.Second

// Config is what a Dispatcher needs.
type Config struct {
	Store  *store.DB
	Router Router
	// Online tells whether an agent has a live tunnel, and since when, for lists.
	Online func(fleet.AgentID) (online bool, since time.Time)
	// Alive says whether a principal's credential still counts.
	Alive func(principal string) bool
	// Principal finds a principal by its id, for calls of an earlier process of this server;
	// false when its credential no longer counts.
	Principal func(id string) (fleet.Principal, bool)
	// CancelElsewhere asks the other replicas to end a call that one of them has under way; nil
	// when this server is alone.
	CancelElsewhere func(fleet.CallID)
	// Fenced tells that this replica may have been taken for dead, and its calls be taken over:
	// then it sends nothing. nil: never.
	Fenced func() bool
	// OfflineWhy tells why agents may seem offline that aren't; "" when nothing is wrong. nil:
	// never.
	OfflineWhy func() string
	// ResumeWait is the longest that a call whose connection was cut waits for its agent; zero:
	// as long as the call may run, and resumeGrace beyond.
	ResumeWait time.Duration
	// CancelWait is the same once its end was asked for; zero: resumeGrace.
	CancelWait time.Duration
	// Expected tells that an agent that isn't online may be within a few seconds; nil: never.
	Expected func(fleet.AgentID) bool
	// Quiet bounds the lines that hosts cause by what they answer; one of its own when nil.
	Quiet *obs.Quiet
	// Metrics counts calls and refusals; nil counts nothing.
	Metrics *obs.Metrics
	// Trace makes the calls' spans; nil makes none.
	Trace *tracing.Tracer
	Log   *slog.Logger
}

// Dispatcher is the one path to an agent.
type Dispatcher struct {
	db         *store.DB
	router     Router
	online     func(fleet.AgentID) (bool, time.Time)
	alive      func(principal string) bool
	principal  func(id string) (fleet.Principal, bool)
	others     func(fleet.CallID) // nil without other replicas
	fenced     func() bool
	offlineWhy func() string
	resumeWait time.Duration
	cancelWait time.Duration
	expected   func(fleet.AgentID) bool
	quiet      *obs.Quiet
	obs        *obs.Metrics
	trace      *tracing.Tracer
	log        *slog.Logger
	defs       map[string]*capability.Definition
	views      views
	lanes      lanes
	waits      *limit.Shares // of requests, see wait

	disowned atomic.Bool // all that is open here is another server's

	closing chan struct{} // closed when no more calls are admitted
	gone    chan struct{} // closed when the running ones are left to the next process

	mu        sync.Mutex
	open      map[fleet.CallID]*flight
	own       map[string]int                  // open calls by principal
	queued    map[fleet.AgentID]int           // queued calls by agent
	owners    map[queueOwner]int              // and by principal
	openBytes int64                           // of all open calls' arguments
	ownBytes  map[string]int64                // and by principal
	arrivals  map[fleet.AgentID]chan struct{} // closed at the agent's next connection
	settling  map[fleet.CallID]bool           // whose evidence is being asked for
	draining  bool
	wg        sync.WaitGroup
}

// New makes a Dispatcher.
func New(c Config) *Dispatcher {
	d := &Dispatcher{
		db: c.Store, router: c.Router, online: c.Online, alive: c.Alive, principal: c.Principal,
		others: c.CancelElsewhere, fenced: c.Fenced, offlineWhy: c.OfflineWhy, resumeWait: c.ResumeWait, cancelWait: cmp.Or(c.CancelWait, resumeGrace), expected: c.Expected,
		quiet: cmp.Or(c.Quiet, new(obs.Quiet)), obs: c.Metrics, trace: c.Trace, log: c.Log, defs: map[string]*capability.Definition{}, open: map[fleet.CallID]*flight{},
		own: map[string]int{}, queued: map[fleet.AgentID]int{}, owners: map[queueOwner]int{}, ownBytes: map[string]int64{}, arrivals: map[fleet.AgentID]chan struct{}{},
		waits: limit.New(ownWaits, maxWaits), settling: map[fleet.CallID]bool{}, closing: make(chan struct{}), gone: make(chan struct{}),
	}
	for _, def := range capability.All() {
		d.defs[def.Name] = def
	}
	return d
}

// Call runs one call from resolving to its recorded outcome. A refusal is a *fleet.Error,
// recorded, and nothing was started. Otherwise the call has an id: the Result is its end,
// with Err set unless it succeeded, or, when req.Wait was over first, where it stands.
func (d *Dispatcher) Call(ctx context.Context, who fleet.Principal, req Request) (Result, error) {
	if req.streams() { // its ends are the caller's, so it lives no longer and is never joined
		req.Wait, req.CancelOnDone, req.Key, req.ToolUseID = endless, true, "", ""
	}
	ctx, span := d.trace.Start(ctx, tracing.Internal, "call")
	f, joined, err := d.begin(ctx, who, req)
	if err != nil || joined != nil {
		turned(span, joined, err) // otherwise it's the flight's
	}
	if err != nil {
		return Result{}, d.refuse(who, req, err)
	}
	if joined != nil {
		d.obs.Joined()
		leave, err := d.mayWait(who)
		defer leave()
		if err != nil { // it hears at once where the call stands
			req.Wait = AtOnce
		}
	}
	if f == nil {
		if joined.State.Final() {
			return d.resultOf(joined, true), nil
		}
		res, err := d.elsewhere(ctx, joined.ID, req.patience())
		res.Joined = true
		return res, err
	}
	if f.queued() && req.Wait == 0 {
		req.Wait = queuedWait
	}
	f.hold()
	answered := false
	defer func() {
		if !answered {
			f.dropped(&req)
		}
	}()
	unwatch := f.watch(req.Progress)
	defer unwatch()
	res, err := d.await(ctx, f, req)
	res.Joined = joined != nil
	answered = true
	return res, err
}

// begin does steps 1 to 5 and sets the call on its way. It returns the call in flight
// here, or an earlier call that this one joins and that has ended or runs elsewhere.
func (d *Dispatcher) begin(ctx context.Context, who fleet.Principal, req Request) (*flight, *fleet.Call, error) {
	snap := d.db.Snapshot()
	t, err := d.admit(snap, who, req)
	if err != nil && fleet.AsError(err).Code == protocol.CodeUnsupported {
		// An agent that has just connected, to another replica perhaps, is known to be there
		// before this snapshot knows what it offers.
		if d.db.Refresh(ctx) == nil {
			snap = d.db.Snapshot()
			t, err = d.admit(snap, who, req)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	intent := t.freeze(who, req)
	if caller, ok := d.reach(ctx, who, t.agent); ok {
		if err := d.heard(ctx, t, req.Edge); err != nil {
			return nil, nil, err
		}
		intent.Boot = caller.Boot()
	} else if req.QueueFor > 0 {
		t.enqueue(&intent, req.QueueFor)
	} else if req.Key == "" && req.ToolUseID == "" {
		return nil, nil, d.offline(snap, t.agent, req.Edge)
	}
	size := int64(len(t.args))
	if err := d.enter(&intent, size); err != nil {
		return nil, nil, err
	}
	flies := false
	defer func() { // also after a panic, which the edge answers
		if !flies {
			d.exit(&intent, size, nil)
		}
	}()
	f, got := newFlight(t, intent), store.IntentResult{}
	f.instance = d.db.Instance()
	way := d.deliver
	switch broke := d.contained(f, func() { got, err = d.intend(ctx, intent) }); {
	case broke: // it may be on record all the same, and is to have its end there then
		way = grounded
	case err != nil:
		return nil, nil, err
	case got.Joined != nil:
		return d.find(got.Joined.ID), got.Joined, nil
	default:
		f.instance = got.Instance
		if d.contained(f, func() { f.prepare(ctx, &req, got.PolicyVersion != snap.Version) }) {
			way = grounded
		}
	}
	if adopted := d.launch(f, way); adopted != nil {
		return adopted, nil, nil
	}
	flies = true
	return f, nil, nil
}

// launch sets a call on its way, unless it was adopted already: this replica may have been taken
// for dead between the commit and now. That one is returned then.
func (d *Dispatcher) launch(f *flight, way way) (adopted *flight) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other := d.open[f.id]; other != nil {
		f.cancel(nil)
		return other
	}
	d.open[f.id] = f
	go d.fly(f, way)
	return nil
}

// enter counts a call in, with the bytes of its arguments, unless the server is draining or a
// limit is reached.
func (d *Dispatcher) enter(in *fleet.Intent, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	queued := !in.QueueUntil.IsZero()
	switch {
	case d.draining:
		return fleet.Errorf(protocol.CodeUnavailable, "this server is shutting down; nothing was started; try again in a moment")
	case d.isFenced(): // what it recorded now might belong to nobody
		return fleet.Errorf(protocol.CodeUnavailable, "this server is out of touch with its database or with other replicas; nothing was started; try again in a moment")
	case d.own[in.Principal.ID] >= maxOwn:
		return fleet.Limited("principal_calls", "this credential has %d open calls, the most that may be; nothing was started; wait for some to end", maxOwn)
	case queued && d.queued[in.Agent] >= maxQueued:
		return fleet.Limited("agent_queue", "%d calls are queued for agent %s, the most that may be; nothing was queued", maxQueued, in.Agent)
	case queued && d.owners[ownerOf(in)] >= ownQueued:
		return fleet.Limited("principal_queue", "this credential has %d calls queued for agent %s, the most that may be; nothing was queued", ownQueued, in.Agent)
	case d.ownBytes[in.Principal.ID]+size > ownOpenBytes:
		return fleet.Limited("principal_open_bytes", "the arguments of this credential's open calls together, the queued ones included, are as large as may be (%d MiB); nothing was started; wait for some to end, and send large content as a file (drover cp)", ownOpenBytes>>20)
	case d.openBytes+size > maxOpenBytes:
		return fleet.Limited("open_bytes", "the arguments of all open calls together, the queued ones included, are as large as may be (%d MiB); nothing was started; try again in a moment, and send large content as a file (drover cp)", maxOpenBytes>>20)
	}
	d.own[in.Principal.ID]++
	if queued {
		d.queued[in.Agent]++
		d.owners[ownerOf(in)]++
	}
	d.keep(in.Principal.ID, size)
	d.wg.Add(1)
	return nil
}

// isFenced tells that others may have taken this replica for dead.
func (d *Dispatcher) isFenced() bool { return d.fenced != nil && d.fenced() }

// exit counts a call out that enter let in; f is its flight, if it has one.
func (d *Dispatcher) exit(in *fleet.Intent, size int64, f *flight) {
	defer d.wg.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own[in.Principal.ID]--; d.own[in.Principal.ID] <= 0 {
		delete(d.own, in.Principal.ID)
	}
	if !in.QueueUntil.IsZero() {
		if d.queued[in.Agent]--; d.queued[in.Agent] <= 0 {
			delete(d.queued, in.Agent)
		}
		if d.owners[ownerOf(in)]--; d.owners[ownerOf(in)] <= 0 {
			delete(d.owners, ownerOf(in))
		}
	}
	d.keep(in.Principal.ID, -size)
	if d.open[in.CallID] == f {
		delete(d.open, in.CallID)
	}
}

func (d *Dispatcher) find(id fleet.CallID) *flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open[id]
}

// await waits for the call's end, the caller's patience, or the caller's own end.
func (d *Dispatcher) await(ctx context.Context, f *flight, req Request) (Result, error) {
	timer := time.NewTimer(req.patience())
	defer timer.Stop()
	var exchanged <-chan struct{}
	if req.streams() {
		exchanged = f.exchanged
	}
	select {
	case <-f.done:
		return f.result, nil
	case <-timer.C:
		return f.standing(), nil
	case <-exchanged:
		return f.settle(ctx), nil
	case <-ctx.Done():
	}
	if !req.CancelOnDone {
		return f.standing(), context.Cause(ctx)
	}
	if !f.leave(ctx) {
		return f.standing(), context.Cause(ctx)
	}
	if !req.streams() {
		<-f.done
		return f.result, nil
	}
	// The caller may have its ends back as soon as nobody uses them; the outcome may come later.
	<-f.exchanged
	select {
	case <-f.done:
		return f.result, nil
	default:
		return f.standing(), context.Cause(ctx)
	}
}

// settle waits for the outcome of a call whose bytes have moved, or won't any more. After a cut
// its agent may come back long after the caller has better things to do; otherwise only the
// record is waited for, so that the answer says the same.
func (f *flight) settle(ctx context.Context) Result {
	var enough <-chan time.Time
	if f.cut {
		timer := time.NewTimer(protocol.CancelGrace)
		defer timer.Stop()
		enough = timer.C
	}
	select {
	case <-f.done:
	case <-enough:
	case <-ctx.Done():
	}
	return f.standing()
}

// endless is a wait that the call's own deadline ends.
const endless = protocol.MaxDeadlineMS*time.Millisecond + time.Hour

// patience is how long the caller waits.
func (r *Request) patience() time.Duration {
	if r.Wait == 0 {
		return DefaultWait
	}
	return r.Wait
}

func (r *Request) streams() bool { return r.Body != nil || r.Sink != nil }

// Causes that end a call early; their texts travel in the cancel frame.
var (
	errGone     = errors.New("the client closed its request")
	errAsked    = errors.New("cancelled by its caller")
	errDeadline = errors.New("the time limit passed")
	errWayGone  = errors.New("the connection that its file went over was lost")
	errStops    = errors.New("the server stops")
	errPurged   = errors.New("an administrator purged the agent's queue")
	errRevoked  = errors.New("the right to it ended: the credential or the agent was revoked, or left its scope")
)

// Enforce ends the running calls that their principal may no longer make: the credential
// was revoked or has expired, the agent was removed, re-keyed, or relabelled out of scope.
func (d *Dispatcher) Enforce() {
	snap := d.db.Snapshot()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.open {
		agent := snap.Agents[f.target.agent.ID]
		if authz.Decide(f.who, f.target.def, agent) != "" || agent.Generation != f.target.agent.Generation || !d.alive(f.who.ID) {
			f.cancel(errRevoked)
		}
	}
}
