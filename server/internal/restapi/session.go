package restapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Tokens judges credentials: authn.Service.
type Tokens interface {
	Token(token string) (fleet.Principal, error)
	ByPAT(id string) (fleet.Principal, error)
	Bearer(r *http.Request) (who fleet.Principal, ok bool, err error)
}

const cookieName = "drover_session"

// Identify finds who is asking: by the Authorization header, or else, for requests of this
// server's own page, by the session's cookie. Its error is a *fleet.Error.
func (a *API) Identify(r *http.Request) (fleet.Principal, error) {
	if who, ok, err := a.PATs.Bearer(r); ok {
		return who, err
	}
	c, err := r.Cookie(cookieName)
	if err != nil {
		return fleet.Principal{}, unauthenticated("a personal access token is needed (Authorization: Bearer drv_pat_…); an administrator makes one with: drover pat create")
	}
	if !edge.SameOrigin(r) {
		return fleet.Principal{}, unauthenticated("the page's session counts only for requests of this server's own page")
	}
	pat, ok := "", false
	if a.Sessions != nil {
		pat, ok = a.Sessions.Find(c.Value, time.Now())
	}
	if !ok {
		return fleet.Principal{}, unauthenticated("the session has ended; enter the token again")
	}
	return a.PATs.ByPAT(pat)
}

// begin counts in a request of who's, until its credential ends: see edge.Serving.
func (a *API) begin(w http.ResponseWriter, r *http.Request, who fleet.Principal) (_ context.Context, done func()) {
	var session func() bool
	if c, err := r.Cookie(cookieName); err == nil && len(r.Header.Values("Authorization")) == 0 {
		session = func() bool { _, ok := a.Sessions.Find(c.Value, time.Now()); return ok }
	}
	return a.Serving.Begin(edge.WithPrincipal(r.Context(), who), w, who.ID, session)
}

func unauthenticated(msg string) *fleet.Error {
	return fleet.Errorf(protocol.CodeUnauthenticated, "%s", msg)
}

type sessionRequest struct {
	PAT string `json:"pat"`
}

// openSession exchanges a token for the page's cookie.
func (a *API) openSession(w http.ResponseWriter, r *http.Request) {
	if !edge.SameOrigin(r) {
		edge.WriteError(w, fleet.Errorf(protocol.CodeDenied, "another site's page may not sign in here"))
		return
	}
	body, err := edge.Read(w, r, 4096)
	var in sessionRequest
	if err == nil {
		if e := strict.Unmarshal(body, &in, strict.Limits{}); e != nil {
			err = edge.BadBody(e)
		}
	}
	var who fleet.Principal
	if err == nil {
		who, err = a.PATs.Token(in.PAT)
	}
	if err != nil {
		fe := fleet.AsError(err)
		a.logCause("open-session", fe)
		edge.WriteError(w, fe)
		return
	}
	cookie, expires := a.Sessions.Open(strings.TrimPrefix(who.ID, "pat:"), who.ExpiresAt, time.Now())
	http.SetCookie(w, a.cookie(r, cookie, expires))
	w.WriteHeader(http.StatusNoContent)
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(cookieName); err == nil && edge.SameOrigin(r) {
		a.Sessions.End(c.Value, time.Now())
	}
	http.SetCookie(w, a.cookie(r, "", time.Unix(1, 0)))
	w.WriteHeader(http.StatusNoContent)
}

func (a *API) cookie(r *http.Request, value string, expires time.Time) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", Expires: expires, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: a.Secure || r.TLS != nil,
	}
}
