package restapi

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Tokens judges credentials: authn.Service.
type Tokens interface {
	Token(token string) (fleet.Principal, error)
	ByHash(hash [32]byte) (fleet.Principal, error)
	Bearer(r *http.Request) (who fleet.Principal, ok bool, err error)
}

// Limits of the page's sessions.
const (
	cookieName  = "drover_session"
	sessionLife = 12 * time.Hour
	maxSessions = 10_000
	// maxOfToken bounds the sessions of one token; its oldest ends for a new one. So nobody
	// signs others out by signing in.
	maxOfToken = 32
)

// sessions are the page's cookies. They live in this process: a restart or another replica
// asks for the token again. A session holds the hash of its token, which is judged anew at
// each request, so that revoking the token ends the session.
type sessions struct {
	mu   sync.Mutex
	live map[[32]byte]session    // by the hash of the cookie
	of   map[[32]byte][][32]byte // the keys of live by token, the oldest first
}

type session struct {
	pat     [32]byte // the hash of the token
	expires time.Time
}

func (s *sessions) open(token string, now time.Time) (cookie string, expires time.Time) {
	cookie, expires = rand.Text(), now.Add(sessionLife)
	id, pat := sha256.Sum256([]byte(cookie)), sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil {
		s.live, s.of = map[[32]byte]session{}, map[[32]byte][][32]byte{}
	}
	if own := s.of[pat]; len(own) >= maxOfToken {
		s.remove(own[0])
	}
	if len(s.live) >= maxSessions {
		s.evict(now)
	}
	s.live[id] = session{pat: pat, expires: expires}
	s.of[pat] = append(s.of[pat], id)
	return cookie, expires
}

// evict drops the expired sessions, and the one that expires first where none is.
func (s *sessions) evict(now time.Time) {
	var first [32]byte
	var at time.Time
	for id, v := range s.live {
		if !now.Before(v.expires) {
			s.remove(id)
		} else if at.IsZero() || v.expires.Before(at) {
			first, at = id, v.expires
		}
	}
	if len(s.live) >= maxSessions {
		s.remove(first)
	}
}

// remove ends one session; mu is held.
func (s *sessions) remove(id [32]byte) {
	v, ok := s.live[id]
	if !ok {
		return
	}
	delete(s.live, id)
	own := slices.DeleteFunc(s.of[v.pat], func(other [32]byte) bool { return other == id })
	if len(own) == 0 {
		delete(s.of, v.pat)
		return
	}
	s.of[v.pat] = own
}

func (s *sessions) find(cookie string, now time.Time) (pat [32]byte, ok bool) {
	id := sha256.Sum256([]byte(cookie))
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.live[id]
	if ok && !now.Before(v.expires) {
		s.remove(id)
		ok = false
	}
	return v.pat, ok
}

func (s *sessions) drop(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(sha256.Sum256([]byte(cookie)))
}

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
	if !sameOrigin(r) {
		return fleet.Principal{}, unauthenticated("the page's session counts only for requests of this server's own page")
	}
	hash, ok := a.sessions.find(c.Value, time.Now())
	if !ok {
		return fleet.Principal{}, unauthenticated("the session has ended; enter the token again")
	}
	return a.PATs.ByHash(hash)
}

func unauthenticated(msg string) *fleet.Error {
	return fleet.Errorf(protocol.CodeUnauthenticated, "%s", msg)
}

// sameOrigin tells whether a browser sent r for a page of this very origin, or whoever sent
// it is no browser: these say where they come from.
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

type sessionRequest struct {
	PAT string `json:"pat"`
}

// openSession exchanges a token for the page's cookie.
func (a *API) openSession(w http.ResponseWriter, r *http.Request) {
	if !sameOrigin(r) {
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
	cookie, expires := a.sessions.open(in.PAT, time.Now())
	if !who.ExpiresAt.IsZero() && who.ExpiresAt.Before(expires) {
		expires = who.ExpiresAt
	}
	http.SetCookie(w, a.cookie(r, cookie, expires))
	w.WriteHeader(http.StatusNoContent)
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(cookieName); err == nil && sameOrigin(r) {
		a.sessions.drop(c.Value)
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
