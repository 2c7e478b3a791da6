package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// catchUpWait bounds how long the other replicas are waited for until each has told which
	// agents it has. One that died is on the database's list for longer.
	catchUpWait = 3 * time.Second
	// catchUpLook is how often that is looked at.
	catchUpLook = 25 * time.Millisecond
)

// reachNATS connects to NATS, or begins to wait for it.
func (b *Bus) reachNATS() (err error) {
	o := []nats.Option{
		nats.Name("drover"), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1), // what can't be sent now fails now: later it might be acted on too late
		nats.PingInterval(stuckAfter / 2), nats.MaxPingsOutstanding(2), nats.FlusherTimeout(stuckAfter), nats.Timeout(5 * time.Second),
		nats.IgnoreAuthErrorAbort(), // whoever mends them there doesn't have to restart every replica
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.connected.Store(0)
			if b.ctx.Err() != nil {
				return // this end closed it
			}
			b.disconnects.Add(1)
			b.cfg.Log.Error("the connection to NATS is lost: agents of other replicas can't be reached", "error", err)
		}),
		nats.ReconnectHandler(func(*nats.Conn) { b.back() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			b.cfg.Log.Warn("NATS reports a fault", "error", err)
		}),
	}
	b.connected.Store(1)
	b.nc, err = nats.Connect(b.cfg.URL, o...)
	if err == nil {
		return nil
	}
	if refusesUs(err) {
		return fmt.Errorf("NATS at %s refuses this server's credentials: %w", redacted(b.cfg.URL), err)
	}
	away := fmt.Errorf("NATS at %s can't be reached: %w", redacted(b.cfg.URL), err)
	if _, malformed := errors.AsType[*net.AddrError](err); malformed {
		return away
	}
	b.connected.Store(0)
	if b.nc, err = nats.Connect(b.cfg.URL, append(o, nats.RetryOnFailedConnect(true), nats.ConnectHandler(func(*nats.Conn) { b.back() }))...); err != nil {
		return away // it's no URL
	}
	b.cfg.Log.Error("this replica starts without the others: their agents are offline here until NATS is there, which is tried again and again", "error", away)
	return nil
}

// refusesUs tells whether NATS is there and doesn't take these credentials.
func refusesUs(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired}, func(e error) bool { return errors.Is(err, e) })
}

// redacted is a URL without its password.
func redacted(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "the given URL"
	}
	return u.Redacted()
}

// back goes on after NATS was away: what the others said meanwhile was missed, so everything is
// asked for.
func (b *Bus) back() {
	b.mu.Lock()
	for _, o := range b.others {
		o.heard, o.missed = time.Now(), true // it couldn't be heard
	}
	b.mu.Unlock()
	b.catching.Add(1) // before it counts as connected: until they have told, agents may be there
	b.connected.Store(1)
	b.cfg.Log.Info("the connection to NATS is there again")
	b.greet()
	if !b.do(func() { defer b.catching.Add(-1); b.CatchUp(b.ctx) }) {
		b.catching.Add(-1)
	}
}

// CatchUp waits until every other replica has told which agents it has, at most catchUpWait, and
// no longer than until ctx ends or NATS is lost.
func (b *Bus) CatchUp(ctx context.Context) {
	if b.cfg.Members == nil {
		return
	}
	b.catching.Add(1)
	defer b.catching.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	look := time.NewTicker(catchUpLook)
	defer look.Stop()
	for b.Connected() {
		heard := b.heard() // before the list: who is heard is on it
		members, err := b.cfg.Members(ctx)
		if err == nil && heard >= members {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				b.cfg.Log.Warn("not every other replica has told which agents it has; those of the silent ones count as offline", "told", heard, "replicas", members, "error", err)
			}
			return
		}
	}
}

// CatchingUp tells that agents may be online elsewhere that aren't known to be, for a moment yet.
func (b *Bus) CatchingUp() bool { return b.catching.Load() > 0 }

// heard counts the other replicas of which all agents are known.
func (b *Bus) heard() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.others {
		if !o.missed {
			n++
		}
	}
	return n
}

// Connected tells whether NATS is there.
func (b *Bus) Connected() bool { return b.connected.Load() == 1 }

// Why tells why agents may be offline here that aren't; "" when nothing is known to be wrong.
func (b *Bus) Why() string {
	why := ""
	switch {
	case !b.Connected():
		why = "this replica can't reach NATS, and so not the other replicas"
	case b.CatchingUp():
		why = "this replica hasn't heard from all the other replicas yet"
	default:
		return ""
	}
	return why + ", where agents that it calls offline may be connected"
}
