package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/store"
)

// DefaultWait is how long a caller waits for an answer before it gets a handle: clients
// give up after 60 s.
const DefaultWait = 50 * time.Second

// Config is what a Dispatcher needs.
type Config struct {
	Store  *store.DB
	Router Router
	// Online tells whether an agent has a live tunnel, and since when, for lists.
	Online func(fleet.AgentID) (online bool, since time.Time)
	// Alive says whether a principal's credential still counts.
	Alive func(principal string) bool
	// Metrics counts calls and refusals; nil counts nothing.
	Metrics *obs.Metrics
	Log     *slog.Logger
}

// Dispatcher is the one path to an agent.
type Dispatcher struct {
	db     *store.DB
	router Router
	online func(fleet.AgentID) (bool, time.Time)
	alive  func(principal string) bool
	obs    *obs.Metrics
	log    *slog.Logger
	defs   map[string]*capability.Definition
	views  views

	base context.Context // ends when the server gives up its running calls
	stop context.CancelCauseFunc

	mu       sync.Mutex
	open     map[fleet.CallID]*flight
	draining bool
	wg       sync.WaitGroup
}

// New makes a Dispatcher.
func New(c Config) *Dispatcher {
	d := &Dispatcher{
		db: c.Store, router: c.Router, online: c.Online, alive: c.Alive, obs: c.Metrics, log: c.Log,
		defs: map[string]*capability.Definition{}, open: map[fleet.CallID]*flight{},
	}
	d.base, d.stop = context.WithCancelCause(context.Background())
	for _, def := range capability.All() {
		d.defs[def.Name] = def
	}
	return d
}

// Call runs one call from resolving to its recorded outcome. A refusal is a *fleet.Error,
// recorded, and nothing was started. Otherwise the call has an id: the Result is its end,
// with Err set unless it succeeded, or, when req.Wait was over first, where it stands.
func (d *Dispatcher) Call(ctx context.Context, who fleet.Principal, req Request) (Result, error) {
	f, joined, err := d.begin(ctx, who, req)
	if err != nil {
		return Result{}, d.refuse(who, req, err)
	}
	if f == nil {
		d.obs.Joined()
		if !joined.State.Final() { // it ended between the two looks
			if joined, err = d.db.Call(ctx, joined.ID); err != nil {
				return Result{}, err
			}
		}
		return d.resultOf(joined, true), nil
	}
	f.hold()
	f.watch(req.Progress)
	if joined != nil {
		d.obs.Joined()
	}
	res, err := d.await(ctx, f, req)
	res.Joined = joined != nil
	return res, err
}

// begin does steps 1 to 5 and sets the call on its way. It returns the call in flight
// here, or an earlier call that this one joins and that has ended or runs elsewhere.
func (d *Dispatcher) begin(ctx context.Context, who fleet.Principal, req Request) (*flight, *fleet.Call, error) {
	snap := d.db.Snapshot()
	t, err := d.admit(snap, who, req)
	if err != nil {
		return nil, nil, err
	}
	if _, ok := d.router.Route(t.agent.ID, t.agent.Generation); !ok && req.Key == "" && req.ToolUseID == "" {
		return nil, nil, d.offline(snap, t.agent)
	}
	if !d.enter() {
		return nil, nil, fleet.Errorf(protocol.CodeUnavailable, "this server is shutting down; nothing was started; try again in a moment")
	}
	intent := t.freeze(who, req)
	got, err := d.db.RecordIntent(ctx, intent)
	if err != nil {
		d.wg.Done()
		return nil, nil, err
	}
	if got.Joined != nil {
		d.wg.Done()
		return d.find(got.Joined.ID), got.Joined, nil
	}
	f := newFlight(d.base, t, intent)
	d.mu.Lock()
	d.open[f.id] = f
	d.mu.Unlock()
	go d.fly(f, who, req, got.PolicyVersion != snap.Version)
	return f, nil, nil
}

// enter counts a call in, unless the server is draining.
func (d *Dispatcher) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return false
	}
	d.wg.Add(1)
	return true
}

func (d *Dispatcher) find(id fleet.CallID) *flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open[id]
}

// await waits for the call's end, the caller's patience, or the caller's own end.
func (d *Dispatcher) await(ctx context.Context, f *flight, req Request) (Result, error) {
	wait := req.Wait
	if wait == 0 {
		wait = DefaultWait
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.result, nil
	case <-timer.C:
		return f.standing(), nil
	case <-ctx.Done():
	}
	if !req.CancelOnDone {
		return f.standing(), context.Cause(ctx)
	}
	if !f.leave() {
		return f.standing(), context.Cause(ctx)
	}
	<-f.done
	return f.result, nil
}

// Causes that end a call early; their texts travel in the cancel frame.
var (
	errGone     = errors.New("the client closed its request")
	errAsked    = errors.New("cancelled by its caller")
	errDeadline = errors.New("the time limit passed")
	errStopping = errors.New("the server stops")
	errRevoked  = errors.New("the right to it ended: the credential or the agent was revoked, or left its scope")
)

// Result tells how a call ended, or where it stands after at most wait. Callers see their
// own calls, administrators all; anything else is not_found.
func (d *Dispatcher) Result(ctx context.Context, who fleet.Principal, id fleet.CallID, wait time.Duration) (Result, error) {
	call, err := d.mine(ctx, who, id)
	if err != nil {
		return Result{}, err
	}
	if f := d.find(id); f != nil && wait > 0 {
		return d.await(ctx, f, Request{Wait: wait})
	} else if f != nil {
		return f.standing(), nil
	}
	if !call.State.Final() { // it ended between the two looks, or never ran in this process
		if call, err = d.mine(ctx, who, id); err != nil {
			return Result{}, err
		}
	}
	return d.resultOf(call, false), nil
}

// Cancel ends a call and tells how it ended; a call that has ended is left as it is.
func (d *Dispatcher) Cancel(ctx context.Context, who fleet.Principal, id fleet.CallID) (Result, error) {
	if _, err := d.mine(ctx, who, id); err != nil {
		return Result{}, err
	}
	f := d.find(id)
	if f == nil { // it has ended, maybe between the two looks
		call, err := d.mine(ctx, who, id)
		if err != nil {
			return Result{}, err
		}
		return d.resultOf(call, false), nil
	}
	f.cancel(errAsked)
	return d.await(ctx, f, Request{Wait: protocol.CancelGrace + 5*time.Second})
}

func (d *Dispatcher) mine(ctx context.Context, who fleet.Principal, id fleet.CallID) (*fleet.Call, error) {
	missing := fleet.Errorf(protocol.CodeNotFound, "no call of that id is yours; drover audit list and GET /api/v1/calls show which there are")
	call, err := d.db.Call(ctx, id)
	if err != nil {
		if fe := fleet.AsError(err); fe.Code != protocol.CodeNotFound {
			return nil, err
		}
		return nil, missing
	}
	if call.Principal != who.ID && !who.Admin {
		return nil, missing
	}
	return call, nil
}

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

// Drain stops admitting calls and waits for the running ones until ctx is done; then it
// gives them up, which ends them as the tunnel's end does.
func (d *Dispatcher) Drain(ctx context.Context) {
	d.mu.Lock()
	d.draining = true
	d.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		d.wg.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return
	case <-ctx.Done():
	}
	d.stop(errStopping)
	select {
	case <-idle:
	case <-time.After(protocol.CancelGrace + 5*time.Second):
		d.log.Error("calls were still open at the end; the next start records them as outcome_unknown")
	}
}

// Open tells how many calls are under way.
func (d *Dispatcher) Open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}
