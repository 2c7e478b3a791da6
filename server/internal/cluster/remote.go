package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// opening asks a replica for a pipe to one connection of one of its agents.
type opening struct {
	From  string        `json:"from"`
	Pipe  string        `json:"pipe"` // the subject to write to
	Nonce string        `json:"nonce"`
	AtUS  int64         `json:"at_us"`
	Agent fleet.AgentID `json:"agent"`
	Epoch int64         `json:"epoch"`
	// Ping asks only whether the agent's process answers.
	Ping bool `json:"ping,omitzero"`
}

// opened answers it. Refused says why there's no pipe.
type opened struct {
	Nonce   string `json:"nonce"` // the opening's, so that an answer belongs to one question
	Own     string `json:"own,omitempty"`
	Pipe    string `json:"pipe,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// remote is the way to one connection of an agent on another replica: a dispatch.Caller. Its
// pipe is opened by the first call and closed when it's idle.
type remote struct {
	bus *Bus
	at  place

	mu      sync.Mutex
	opening sync.Mutex // one at a time
	session *mux.Session
	used    time.Time
}

// remote finds or makes the way to a place. b.mu is held.
func (b *Bus) remote(at place) *remote {
	r := b.remotes[at]
	if r == nil {
		r = &remote{bus: b, at: at, used: time.Now()}
		b.remotes[at] = r
	}
	return r
}

func (r *remote) entry() entry {
	r.bus.mu.Lock()
	defer r.bus.mu.Unlock()
	o := r.bus.others[r.at.replica]
	if o == nil || o.agents[r.at.agent].Epoch != r.at.epoch {
		return entry{}
	}
	return o.agents[r.at.agent]
}

// Boot implements dispatch.Caller.
func (r *remote) Boot() string { return r.entry().Boot }

// Version implements dispatch.Caller.
func (r *remote) Version() int { return r.entry().Version }

// Call implements dispatch.Caller.
func (r *remote) Call(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	s, err := r.get(ctx)
	if err != nil {
		return nil, err
	}
	r.bus.hops.Add(1)
	resp, err := s.Call(ctx, req, x)
	r.touch()
	if err != nil {
		return nil, err
	}
	return across(resp)
}

// Resume implements dispatch.Caller.
func (r *remote) Resume(ctx context.Context, id string, x mux.Exchange) (mux.Fate, *protocol.Response, error) {
	s, err := r.get(ctx)
	if err != nil {
		return mux.Fate{}, nil, err
	}
	fate, resp, err := s.Resume(ctx, id, x)
	r.touch()
	if err == nil && resp != nil {
		resp, err = across(resp)
	}
	if fate.Note == noteUnasked {
		return mux.Fate{}, nil, fmt.Errorf("%w: the agent was not asked", protocol.ErrNotSent)
	}
	return fate, resp, err
}

func (r *remote) touch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = time.Now()
}

func (r *remote) idle(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.used) > idleAfter && (r.session == nil || r.session.Open() == 0)
}

func (r *remote) close(why string) {
	r.mu.Lock()
	s := r.session
	r.mu.Unlock()
	if s != nil {
		s.Close(protocol.CloseGoingAway, why)
	}
}

// get returns the living session, or opens one. Its errors have protocol.ErrNotSent.
func (r *remote) get(ctx context.Context) (*mux.Session, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.mu.Lock()
	s := r.session
	r.used = time.Now()
	r.mu.Unlock()
	if s != nil && s.Alive() {
		return s, nil
	}
	s, err := r.bus.dial(ctx, r.at)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", protocol.ErrNotSent, err)
	}
	r.mu.Lock()
	r.session = s
	r.mu.Unlock()
	return s, nil
}

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
	s := mux.New(p, mux.Config{KeepAlive: pipeAlive})
	if !b.run(s) {
		s.Close(0, "")
		return nil, errors.New("this replica stops")
	}
	return s, nil
}

// ask asks a replica for a pipe, or whether an agent is alive.
func (b *Bus) ask(ctx context.Context, at place, o *opening) (*opened, error) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	o.From, o.Agent, o.Epoch, o.AtUS = b.replica, at.agent, at.epoch, time.Now().UnixMicro()
	plain, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	subject := b.prefix + "open." + at.replica
	m, err := b.nc.RequestWithContext(ctx, subject, b.keys.seal(subject, plain))
	if err != nil {
		if errors.Is(err, nats.ErrNoResponders) {
			b.mu.Lock()
			b.forget(at.replica)
			b.mu.Unlock()
		}
		return nil, fmt.Errorf("the replica that holds %s doesn't answer: %w", at.agent, err)
	}
	plain, err = b.keys.unseal(o.Nonce, m.Data)
	if err != nil {
		b.refuse("an answer", err)
		return nil, err
	}
	var a opened
	if err := strict.Unmarshal(plain, &a, strict.Limits{MaxBytes: 4096, MaxDepth: 4}); err != nil || a.Nonce != o.Nonce {
		b.refuse("an answer", errForged)
		return nil, errForged
	}
	if a.Refused != "" {
		return nil, errors.New(text.Line(a.Refused, 200))
	}
	return &a, nil
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

// run runs a session until it or the bus ends; false when the bus has ended.
func (b *Bus) run(s *mux.Session) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return false
	}
	b.all.Go(func() { _ = s.Run(b.ctx) }) // its end is its calls' to tell
	return true
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
	if ok {
		e := b.others[at.replica].agents[id]
		ok = e.Generation == generation && e.Instance != instance
	}
	b.mu.Unlock()
	if !ok {
		return false
	}
	_, err := b.ask(ctx, at, &opening{Nonce: token(), Ping: true})
	return err == nil
}
