package tunnel

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// gate bounds the handshakes that run. Who says nothing holds a place only as long as
// nobody else needs it: without that, a few hundred silent connections would keep every
// agent out.
type gate struct {
	max   int
	share int // of one remote address; a proxy on this machine speaks for everybody

	mu     sync.Mutex
	in     map[*ticket]struct{}
	byAddr map[netip.Addr]int
}

// ticket is one handshake's place.
type ticket struct {
	g      *gate
	addr   netip.Addr // invalid: not counted
	cancel context.CancelCauseFunc
	since  time.Time // when it began to wait for the peer; zero while it doesn't
}

// spare is how long a silent peer keeps its place when others want it: two round trips of
// the slowest link.
const spare = 1500 * time.Millisecond

var errShed = errors.New("it said nothing while others waited for its place")

func newGate(most int) *gate {
	return &gate{max: most, share: max(1, most/4), in: map[*ticket]struct{}{}, byAddr: map[netip.Addr]int{}}
}

// enter gives a place to a connection from remote, an address with a port, and a context
// that ends when the place is lost; false when there's none.
func (g *gate) enter(ctx context.Context, remote string) (context.Context, *ticket, bool) {
	t := &ticket{g: g}
	if ap, err := netip.ParseAddrPort(remote); err == nil && !ap.Addr().Unmap().IsLoopback() {
		t.addr = ap.Addr().Unmap()
	}
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.addr.IsValid() && g.byAddr[t.addr] >= g.share && !g.shed(now, t.addr) {
		return ctx, nil, false
	}
	if len(g.in) >= g.max && !g.shed(now, netip.Addr{}) {
		return ctx, nil, false
	}
	g.in[t] = struct{}{}
	if t.addr.IsValid() {
		g.byAddr[t.addr]++
	}
	ctx, t.cancel = context.WithCancelCause(ctx)
	return ctx, t, true
}

// shed ends the handshake whose peer has been silent for the longest time, if that's long
// enough; of this address only, unless it's invalid.
func (g *gate) shed(now time.Time, addr netip.Addr) bool {
	var oldest *ticket
	for t := range g.in {
		if t.since.IsZero() || addr.IsValid() && t.addr != addr {
			continue
		}
		if oldest == nil || t.since.Before(oldest.since) {
			oldest = t
		}
	}
	if oldest == nil || now.Sub(oldest.since) < spare {
		return false
	}
	g.remove(oldest)
	oldest.cancel(errShed)
	return true
}

func (g *gate) remove(t *ticket) {
	if _, ok := g.in[t]; !ok {
		return
	}
	delete(g.in, t)
	if t.addr.IsValid() {
		if g.byAddr[t.addr]--; g.byAddr[t.addr] == 0 {
			delete(g.byAddr, t.addr)
		}
	}
}

// leave gives the place back.
func (t *ticket) leave() {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	t.g.remove(t)
	t.cancel(nil)
}

// waiting notes that it's the peer's turn, or that it has spoken.
func (t *ticket) waiting(yes bool) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	t.since = time.Time{}
	if yes {
		t.since = time.Now()
	}
}
