package mcpapi

import (
	"context"
	"errors"
	"net/http"
)

// Causes that end a request early; dispatch passes their texts on.
var (
	errClientCancelled = errors.New("the client cancelled the call")
	errRevoked         = errors.New("the credential was revoked")
	errReplaced        = errors.New("a newer GET stream replaced this one")
	errClosing         = errors.New("the server is shutting down")
)

// standing is a GET stream that is open.
type standing struct {
	stop context.CancelCauseFunc
	gone chan struct{} // closed once it no longer holds the session's stream
}

// track counts a request in under its principal, so that Revoke can end it.
func (a *API) track(ctx context.Context, principal string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		cancel(errClosing)
	}
	of := a.open[principal]
	if of == nil {
		of = map[*context.CancelCauseFunc]struct{}{}
		a.open[principal] = of
	}
	of[&cancel] = struct{}{}
	return ctx, func() {
		cancel(nil)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(of, &cancel)
		if len(of) == 0 && len(a.open[principal]) == 0 {
			delete(a.open, principal)
		}
	}
}

// takeOver makes r the one GET stream of its session: one that is open is ended first, as
// the SDK would answer 409 to a client that comes back before its old connection is known
// to be dead. Sessions of other principals aren't touched.
func (a *API) takeOver(r *http.Request, principal string) (leave func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	*r = *r.WithContext(ctx)
	key := principal + "\x00" + r.Header.Get(sessionHeader)
	me := &standing{stop: cancel, gone: make(chan struct{})}
	a.mu.Lock()
	before := a.gets[key]
	a.gets[key] = me
	a.mu.Unlock()
	if before != nil {
		before.stop(errReplaced)
		select {
		case <-before.gone:
		case <-ctx.Done():
		}
	}
	return func() {
		cancel(nil)
		close(me.gone)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.gets[key] == me {
			delete(a.gets, key)
		}
	}
}

// Revoke ends everything of a principal that is open here: its streams, its requests and
// its sessions. Calls under way are dispatch's to end.
func (a *API) Revoke(principal string) {
	a.mu.Lock()
	for cancel := range a.open[principal] {
		(*cancel)(errRevoked)
	}
	a.mu.Unlock()
	a.servers.drop(principal)
}

// Refresh brings the tool lists of open sessions up to date and tells their clients; call
// it when grants, or what agents offer, have changed. Requests do it for themselves.
func (a *API) Refresh() {
	for _, s := range a.servers.all() {
		if who, ok := s.owner(); ok {
			s.sync(a, who)
		}
	}
}

// Close ends all streams and sessions, for a shutdown.
func (a *API) Close() {
	a.mu.Lock()
	a.closed = true
	for _, of := range a.open {
		for cancel := range of {
			(*cancel)(errClosing)
		}
	}
	a.mu.Unlock()
	for _, s := range a.servers.all() {
		a.servers.drop(s.principal)
	}
}

// callContext is the context of a forwarded call. In the modern era whatever ends the
// request cancels the call. In older ones only the client's notifications/cancelled does,
// which the SDK tells apart by its cause: a session that ends, or a connection that
// breaks, leaves the call running, detached. It's not ended after the call: once a handle
// was given, nothing implicit cancels.
func callContext(ctx context.Context, modern bool) (_ context.Context, release func() bool) {
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	release = context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		switch {
		case modern:
			cancel(cause)
		case errors.Is(cause, context.Canceled):
			cancel(errClientCancelled)
		}
	})
	return call, release
}
