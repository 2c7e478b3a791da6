package restapi

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// healthz tells that the process serves. It says nothing of the fleet: anybody may ask.
func (a *API) healthz(w http.ResponseWriter, _ *http.Request) {
	plain(w, http.StatusOK, "ok\n")
}

// readyz tells whether calls could be started and recorded: a balancer takes the replica out
// if not.
func (a *API) readyz(w http.ResponseWriter, r *http.Request) {
	if a.draining.Load() {
		plain(w, http.StatusServiceUnavailable, "draining\n")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if err := a.Store.Ping(ctx); err != nil {
		a.Log.Warn("not ready: the store doesn't answer", "err", err)
		plain(w, http.StatusServiceUnavailable, "the store doesn't answer\n")
		return
	}
	if a.Fenced != nil && a.Fenced() {
		plain(w, http.StatusServiceUnavailable, "this server's hold on its database was lost; nothing starts until it's back\n")
		return
	}
	plain(w, http.StatusOK, "ready\n")
}

func plain(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s) // a client that is gone needs no answer
}

// Draining makes /readyz say that this replica takes no new work.
func (a *API) Draining() { a.draining.Store(true) }

// metrics lets scrapers on this machine in, and administrators.
func (a *API) metrics(w http.ResponseWriter, r *http.Request) {
	if a.Metrics == nil {
		http.NotFound(w, r)
		return
	}
	if !local(r) {
		who, err := a.Identify(r)
		if err == nil && !who.Admin {
			err = fleet.Errorf(protocol.CodeDenied, "metrics need an administrator's token, or a scraper on the server's own machine")
		}
		if err != nil {
			fe := fleet.AsError(err)
			if fe.Code == protocol.CodeUnauthenticated {
				edge.Challenge(w.Header(), r)
			}
			a.logCause("metrics", fe)
			edge.WriteError(w, fe)
			return
		}
		_, served := a.begin(w, r, who)
		defer served()
	}
	a.Metrics.ServeHTTP(w, r)
}

// local tells whether somebody on this machine asks, for this machine. A request that a
// proxy forwarded isn't local, whatever its peer's address is: it says so in a header, or
// carries the name that the client asked for. A proxy that does neither is what docs/deploy.md
// warns of.
func local(r *http.Request) bool {
	if !edge.Loopback(r.Host) {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via", "Tailscale-User-Login"} {
		if len(r.Header.Values(h)) > 0 {
			return false
		}
	}
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && ap.Addr().Unmap().IsLoopback()
}
