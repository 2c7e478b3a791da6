package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/tracing"
)

// remote is the way to one connection of an agent on another replica: a dispatch.Caller.
// Route returns the same one until it failed to ask for an earlier call: whoever waits to ask
// again sees by another one that it's worth while.
type remote struct {
	*line
	failed atomic.Int64 // when it did, in ns; 0: it didn't
}

// askAgain is the least time between two tries to ask for an earlier call.
const askAgain = time.Second

// line is what remotes to one place share: the pipe, opened by the first call and closed when
// it's idle.
type line struct {
	bus *Bus
	at  place

	mu      sync.Mutex
	session *mux.Session
	dialing *dialing // under way; nil: none is
	used    time.Time
	dropped bool // nobody finds it any more
}

// dialing is one try to open a pipe, which all wait for that want it.
type dialing struct {
	done    chan struct{}
	session *mux.Session
	err     error
}

// remote finds or makes the way to a place. b.mu is held.
func (b *Bus) remote(at place) *remote {
	r := b.remotes[at]
	if r == nil {
		r = &remote{line: &line{bus: b, at: at}}
		b.remotes[at] = r
	} else if f := r.failed.Load(); f != 0 && time.Since(time.Unix(0, f)) > askAgain {
		r = &remote{line: r.line}
		b.remotes[at] = r
	}
	r.touch()
	return r
}

// Reasons of drop. News and pipes come by different ways, so what a replica answered before its
// last word may be read after it: its pipes end by its own close, which comes after the answers.
const (
	byPipe       = ""
	goneSilently = "its replica is gone"
)

// drop ends the way to a place, for what is begun from now on if that's byPipe. b.mu is held.
func (b *Bus) drop(at place, why string) {
	r := b.remotes[at]
	delete(b.remotes, at)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped = true
	if r.session != nil && why != byPipe {
		r.session.Close(protocol.CloseGoingAway, why)
	}
}

func (l *line) entry() entry {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	o := l.bus.others[l.at.replica]
	if o == nil || o.agents[l.at.agent].Epoch != l.at.epoch {
		return entry{}
	}
	return o.agents[l.at.agent]
}

// Boot implements dispatch.Caller.
func (l *line) Boot() string { return l.entry().Boot }

// Version implements dispatch.Caller.
func (l *line) Version() int { return l.entry().Version }

// Replica implements dispatch.Remote.
func (l *line) Replica() string { return l.at.replica }

// Call implements dispatch.Caller.
func (l *line) Call(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	ctx, span := l.bus.cfg.Trace.Start(ctx, tracing.Client, "hop")
	defer span.End()
	span.Set(attrReplica, l.at.replica)
	if req.Traceparent != "" { // else the agent, or the replica that it's connected to, knows nothing of it
		req.Traceparent = span.Traceparent()
	}
	resp, err := l.call(ctx, req, x)
	if err != nil {
		span.Fail("no_response")
	}
	return resp, err
}

// attrReplica is the other replica of a hop, in spans.
const attrReplica = "drover.replica"

func (l *line) call(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	s, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	l.bus.hops.Add(1)
	l.bus.outNow.Add(1)
	defer l.bus.outNow.Add(-1)
	resp, err := s.Call(ctx, req, x)
	l.touch()
	if err != nil {
		return nil, err
	}
	return across(resp)
}

// Resume implements dispatch.Caller.
func (r *remote) Resume(ctx context.Context, id string, x mux.Exchange) (mux.Fate, *protocol.Response, error) {
	fate, resp, err := r.resume(ctx, id, x)
	if errors.Is(err, protocol.ErrNotSent) || errors.Is(err, protocol.ErrCut) {
		r.failed.Store(time.Now().UnixNano())
	}
	return fate, resp, err
}

func (l *line) resume(ctx context.Context, id string, x mux.Exchange) (mux.Fate, *protocol.Response, error) {
	s, err := l.get(ctx)
	if err != nil {
		return mux.Fate{}, nil, err
	}
	fate, resp, err := s.Resume(ctx, id, x)
	l.touch()
	if fate.Note == noteUnasked {
		return mux.Fate{}, nil, fmt.Errorf("%w: the agent was not asked", protocol.ErrNotSent)
	}
	if err == nil && resp != nil {
		resp, err = across(resp)
	}
	return fate, resp, err
}

func (l *line) touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = time.Now()
}

func (l *line) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.used) > idleAfter && l.dialing == nil && (l.session == nil || l.session.Open() == 0)
}

// get returns the living session, or opens one. Its errors have protocol.ErrNotSent.
func (l *line) get(ctx context.Context) (*mux.Session, error) {
	s, d, err := l.dial()
	if s != nil {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, err)
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, context.Cause(ctx))
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, d.err)
	}
	return d.session, nil
}

var errMoved = errors.New("the connection that it was meant for is gone")

// dial finds the living session, or a try to open one, or begins that.
func (l *line) dial() (*mux.Session, *dialing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = time.Now()
	switch {
	case l.dropped:
		return nil, nil, errMoved
	case l.session != nil && l.session.Alive():
		return l.session, nil, nil
	case l.dialing != nil:
		return nil, l.dialing, nil
	}
	d := &dialing{done: make(chan struct{})}
	if !l.bus.do(func() { l.dialed(d) }) {
		return nil, nil, errStops
	}
	l.dialing = d
	return nil, d, nil
}

func (l *line) dialed(d *dialing) {
	defer close(d.done)
	d.err = errNotDialed
	func() {
		defer fault.Catch(l.bus.caught("the opening of a pipe", "replica", l.at.replica, "agent", l.at.agent))
		d.session, d.err = l.bus.dial(l.bus.ctx, l.at)
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialing = nil
	switch {
	case d.err != nil:
	case l.dropped:
		d.session.Close(protocol.CloseGoingAway, "not wanted any more")
	default:
		l.session = d.session
	}
}

var errNotDialed = errors.New("this replica failed inside")

// errStops: nothing is begun any more.
var errStops = errors.New("this replica stops")

// dial opens a pipe to a place and runs its session.
func (b *Bus) dial(ctx context.Context, at place) (*mux.Session, error) {
	word, nonce := token(), token()
	here := b.prefix + "pipe." + b.replica + "." + word
	answer, err := b.ask(ctx, at, &opening{Pipe: here, Nonce: nonce})
	if err != nil {
		return nil, err
	}
	there, back, err := b.keys.sequences(nonce, answer.Own)
	if err != nil {
		return nil, err
	}
	p := b.newPipe(word, &pipe{to: answer.Pipe, here: here, out: there, in: back})
	s := mux.New(p, mux.Config{KeepAlive: pipeAlive, Panicked: b.panicked(at.replica)})
	if !b.run(s, func() {}) {
		return nil, errStops
	}
	return s, nil
}

// panicked hears of the panics of a pipe's session.
func (b *Bus) panicked(replica string) func(string, *fault.Panic) {
	return func(call string, p *fault.Panic) { b.caught("a pipe", "call", call, "replica", replica)(p) }
}

// newPipe completes and registers a pipe.
func (b *Bus) newPipe(word string, p *pipe) *pipe {
	p.publish, p.now, p.come, p.ended = b.nc.Publish, time.Now, make(chan []byte, waiting), make(chan struct{})
	p.refused = func(err error) { b.refuse("a pipe's message", err) }
	p.gone = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.pipes, word)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pipes[word] = p
	return p
}

// run runs a session until it or the bus ends, and then ended; false when the bus has ended.
func (b *Bus) run(s *mux.Session, ended func()) bool {
	ok := b.do(func() {
		defer fault.Catch(s.Broke)
		defer ended()
		_ = s.Run(b.ctx) // its end is its calls' to tell
	})
	if !ok {
		s.Close(0, "")
	}
	return ok
}

func (b *Bus) onPipe(m *nats.Msg) {
	b.mu.Lock()
	p := b.pipes[lastWord(m.Subject)]
	b.mu.Unlock()
	if p == nil {
		return // it ended while this was on its way
	}
	p.receive(m.Data)
}

// Alive asks whether the process that holds an agent's connection on another replica answers:
// a second process with the same key isn't let in beside it. False also when there's none.
func (b *Bus) Alive(ctx context.Context, id fleet.AgentID, generation int64, instance string) bool {
	b.mu.Lock()
	at, ok := b.where[id]
	o := b.others[at.replica]
	if ok = ok && o != nil && b.Connected(); ok {
		e := o.agents[id]
		ok = e.Generation == generation && e.Instance != instance
	}
	b.mu.Unlock()
	if !ok {
		return false
	}
	_, err := b.ask(ctx, at, &opening{Nonce: token(), Ping: true})
	return err == nil
}
