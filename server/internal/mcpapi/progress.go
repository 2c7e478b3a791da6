package mcpapi

import (
	"fmt"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
)

// Progress notifications: none for calls that end at once, at least one every
// progressEvery, at most one every progressApart.
const (
	progressFirst = time.Second
	progressApart = 2 * time.Second
	progressEvery = 15 * time.Second
)

// progress tells a client how its call goes: the first notification names the call's id,
// each has the latest line of output. A nil progress does nothing.
type progress struct {
	notify  notify
	broke   func(*fault.Panic) // hears of a panic of what sends them
	started time.Time

	mu     sync.Mutex // of what update changes; never held while sending
	last   dispatch.Update
	fresh  bool
	timer  *time.Timer
	ended  bool
	sentAt time.Time

	sending sync.Mutex // held while sending, so that stop can wait for it
	named   bool
	value   float64
}

// notify sends one notification to the request's own stream. A client that can't be told is
// found out by its stream.
type notify func(value float64, msg string)

func newProgress(n notify, broke func(*fault.Panic)) *progress {
	return &progress{notify: n, broke: broke, started: time.Now()}
}

// update takes news of the call; it doesn't block. The first starts the clock.
func (p *progress) update(u dispatch.Update) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.last, p.fresh = u, p.fresh || u.Message != ""
	switch {
	case p.timer == nil:
		p.timer = time.AfterFunc(progressFirst, p.send)
	case u.Message != "" && !p.sentAt.IsZero():
		p.timer.Reset(max(0, progressApart-time.Since(p.sentAt)))
	}
}

// send notifies once and comes again.
func (p *progress) send() {
	defer fault.Catch(p.broke) // the call goes on without more news
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	u, fresh := p.last, p.fresh
	p.fresh, p.sentAt = false, time.Now()
	p.timer.Reset(progressEvery)
	p.mu.Unlock()

	elapsed := time.Since(p.started).Truncate(100 * time.Millisecond).Seconds()
	p.value = max(p.value+0.1, elapsed)
	msg := fmt.Sprintf("%s: running for %.0f s", u.Agent, elapsed)
	switch {
	case fresh && u.Host: // nobody takes it for Drover's
		msg = fmt.Sprintf("%s says: %s", u.Agent, text.Quote(u.Message, 512))
	case fresh:
		msg = fmt.Sprintf("%s: %s", u.Agent, u.Message)
	}
	if !p.named {
		p.named = true
		msg = fmt.Sprintf("call %s on %s", u.CallID, msg)
	}
	p.notify(p.value, msg)
}

// stop ends the notifications; none is sent after it returns.
func (p *progress) stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	p.sending.Lock()
	defer p.sending.Unlock()
}
