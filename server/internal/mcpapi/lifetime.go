package mcpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Causes that end a request early; dispatch passes their texts on.
var (
	errClientCancelled = errors.New("the client cancelled the call")
	errReplaced        = errors.New("a newer GET stream replaced this one")
	errClosing         = errors.New("the server is shutting down")
)

// standing is a GET stream that is open.
type standing struct {
	stop context.CancelCauseFunc
	gone chan struct{} // closed once it no longer holds the session's stream
}

// request is one that is being served.
type request struct {
	cancel context.CancelCauseFunc
	stands bool // a stream that ends only when somebody ends it
}

// track counts a request in under its principal.
func (a *API) track(ctx context.Context, w http.ResponseWriter, principal string) (_ context.Context, req *request, end func()) {
	ctx, cancel, done := edge.Ending(ctx, w)
	req = &request{cancel: cancel}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		cancel(errClosing)
	}
	of := a.open[principal]
	if of == nil {
		of = map[*request]struct{}{}
		a.open[principal] = of
	}
	of[req] = struct{}{}
	return ctx, req, func() {
		done()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(of, req)
		if len(of) == 0 && len(a.open[principal]) == 0 {
			delete(a.open, principal)
		}
	}
}

// maxStreams bounds the streams of one principal that stand: as many as it may have sessions.
const maxStreams = maxSessions

// stand marks a request as a stream that nothing but its end ends.
func (a *API) stand(principal string, req *request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for other := range a.open[principal] {
		if other.stands {
			n++
		}
	}
	if n >= maxStreams {
		return fleet.Limited("principal_streams", "%d streams of this credential are open already, the most that may; end some first: calls don't need one", maxStreams)
	}
	req.stands = true
	if a.leaving {
		req.cancel(errClosing)
	}
	return nil
}

// takeOver makes r the one GET stream of its session: one that is open is ended first, as
// the SDK would answer 409 to a client that comes back before its old connection is known
// to be dead. That one no longer counts among those that stand: stand comes after. Sessions of
// other principals aren't touched. req is the request that r belongs to.
func (a *API) takeOver(w http.ResponseWriter, r *http.Request, principal string, req *request) (leave func()) {
	ctx, cancel, done := edge.Ending(r.Context(), w)
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
		done()
		a.mu.Lock()
		defer a.mu.Unlock()
		req.stands = false
		close(me.gone)
		if a.gets[key] == me {
			delete(a.gets, key)
		}
	}
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

// EndStreams ends the streams that would stand for ever, and any that come, for a shutdown.
// What has an answer coming goes on: Close ends that.
func (a *API) EndStreams() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving = true
	for _, of := range a.open {
		for req := range of {
			if req.stands {
				req.cancel(errClosing)
			}
		}
	}
}

// Close ends all requests and sessions.
func (a *API) Close() {
	a.mu.Lock()
	a.closed = true
	for _, of := range a.open {
		for req := range of {
			req.cancel(errClosing)
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
