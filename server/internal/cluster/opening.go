package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
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

// openingLimits are those of openings and their answers. They are strict, as what travels
// over pipes is: calls depend on them.
var openingLimits = strict.Limits{MaxBytes: 4096, MaxDepth: 4}

// noneFor is how long an answer is waited for after NATS said that nobody is there: anyone
// could have said so.
const noneFor = 250 * time.Millisecond

// ask asks a replica for a pipe, or whether an agent is alive.
func (b *Bus) ask(ctx context.Context, at place, o *opening) (*opened, error) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	o.From, o.Agent, o.Epoch, o.AtUS = b.replica, at.agent, at.epoch, time.Now().UnixMicro()
	plain, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	inbox, err := b.nc.SubscribeSync(b.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = inbox.Unsubscribe() }() // fails only without NATS
	subject := b.prefix + "open." + at.replica
	if err := b.nc.PublishRequest(subject, inbox.Subject, b.keys.seal(subject, plain)); err != nil {
		return nil, err
	}
	nobody := false
	for {
		m, err := inbox.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrNoResponders) && !nobody:
			nobody = true
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, noneFor)
			defer stop()
			continue
		case err != nil && nobody:
			b.mu.Lock()
			b.forget(at.replica, goneSilently)
			b.mu.Unlock()
			fallthrough
		case err != nil:
			return nil, fmt.Errorf("the replica that holds %s doesn't answer: %w", at.agent, err)
		}
		if a := b.answered(o.Nonce, m.Data); a != nil {
			return a, a.refusal()
		}
	}
}

// answered opens the answer to an opening; nil when it's none.
func (b *Bus) answered(nonce string, data []byte) *opened {
	plain, err := b.keys.unseal(nonce, data)
	if err != nil {
		b.refuse("an answer", errForged)
		return nil
	}
	var a opened
	if err := strict.Unmarshal(plain, &a, openingLimits); err != nil {
		b.refuse("an answer", fmt.Errorf("%w: %w", errUnreadable, err))
		return &opened{Nonce: nonce, Refused: notUnderstood}
	}
	if a.Nonce != nonce {
		b.refuse("an answer", errForged)
		return nil
	}
	return &a
}

// notUnderstood is what a replica is told, and what a caller is, about a request for a pipe, or
// the answer to one, that is another version's. Nothing was started.
const notUnderstood = "the replicas that the call goes through have versions that don't understand each other: finish the upgrade"

// refusal is why there's no pipe; nil when there's one.
func (a *opened) refusal() error {
	switch a.Refused {
	case "":
		return nil
	case notUnderstood: // the caller is told, as trying again doesn't help
		return fleet.Errorf(protocol.CodeNotStarted, "%s; nothing ran", notUnderstood)
	}
	return errors.New(text.Line(a.Refused, 200))
}

// onOpen answers another replica's request for a pipe.
func (b *Bus) onOpen(m *nats.Msg) {
	plain, err := b.keys.unseal(m.Subject, m.Data)
	if err != nil {
		b.refuse("an opening", err)
		return
	}
	var o opening
	if err := strict.Unmarshal(plain, &o, openingLimits); err != nil {
		b.refuse("an opening", fmt.Errorf("%w: %w", errUnreadable, err))
		if a := b.refuseOpening(plain); a != nil {
			b.respond(m, a)
		}
		return
	}
	now := time.Now()
	if stale(now.Sub(time.UnixMicro(o.AtUS))) {
		b.refuse("an opening", errStale)
		return
	}
	b.mu.Lock()
	_, again := b.opens[o.Nonce]
	b.opens[o.Nonce] = now
	b.mu.Unlock()
	if again {
		b.refuse("an opening", errReplay)
		return
	}
	b.do(func() {
		defer fault.Catch(b.caught("an opening"))
		b.answer(m, &o)
	})
}

func (b *Bus) answer(m *nats.Msg, o *opening) {
	a := &opened{Nonce: o.Nonce}
	e, ok := b.cfg.Local.Lookup(o.Agent)
	switch {
	case !ok || e.Epoch != o.Epoch:
		a.Refused = fmt.Sprintf("the connection of %s isn't here any more", o.Agent)
	case o.Ping:
		ctx, cancel := context.WithTimeout(b.ctx, openWait)
		defer cancel()
		if err := e.Session.Ping(ctx); err != nil {
			a.Refused = "the agent doesn't answer"
		}
	default:
		if err := b.accept(o, a, e); err != nil {
			a.Refused = err.Error()
		}
	}
	b.respond(m, a)
}

// respond sends the answer to an opening.
func (b *Bus) respond(m *nats.Msg, a *opened) {
	plain, err := json.Marshal(a)
	if err != nil {
		return // strings
	}
	if err := m.Respond(b.keys.seal(a.Nonce, plain)); err != nil {
		b.cfg.Log.Warn("another replica was not answered", "error", err)
	}
}

// refuseOpening answers a request for a pipe that was sealed by a replica of this deployment
// and can't be read.
func (b *Bus) refuseOpening(plain []byte) *opened {
	var o struct {
		Nonce string `json:"nonce"`
		AtUS  int64  `json:"at_us"`
	}
	lim := openingLimits
	lim.Extra = true
	if strict.Unmarshal(plain, &o, lim) != nil || stale(time.Since(time.UnixMicro(o.AtUS))) {
		return nil
	}
	return &opened{Nonce: o.Nonce, Refused: notUnderstood}
}
