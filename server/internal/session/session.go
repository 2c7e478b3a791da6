// Package session keeps people signed in on the page. A session is a cookie that the server
// seals and gives away: every replica with the server's key can open it, and none has to keep
// it. What is kept is which sessions ended before their time; each replica tells the others.
package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/enroll"
)

// Life is how long a session lasts at most.
const Life = 12 * time.Hour

const (
	// maxEnded bounds what is kept of one token's ended sessions. For one more, all of that
	// token's sessions that are as old as the oldest of these, or older, end as well: whoever
	// signs in and out again and again ends their own sessions and nobody else's.
	maxEnded = 256
	// sweepEvery is how often what has expired is forgotten.
	sweepEvery = 10 * time.Minute
	// maxCookie bounds what is opened, in bytes.
	maxCookie = 512
	// label binds keys and cookies to this use and form.
	label = "drover/session/v1"
)

// Session is what a cookie holds, and what is remembered of one that has ended. It has nothing
// of the token's secret: that token is judged anew at each request.
type Session struct {
	PAT       string `json:"pat"`          // the token's id, without "pat:"
	ID        string `json:"id,omitempty"` // random. Of an ended one "" is every session of the token that began until then
	IssuedUS  int64  `json:"issued_us"`
	ExpiresUS int64  `json:"expires_us"`
}

// Config sets up a Keeper.
type Config struct {
	// Key is the server's key, the same on every replica.
	Key ed25519.PrivateKey
	// File keeps the ended sessions over a restart.
	File string
	// Tell, if not nil, tells the other replicas of a session that ended here.
	Tell func(Session)
	Log  *slog.Logger
}

// Keeper opens, finds and ends sessions.
type Keeper struct {
	cfg  Config
	aead cipher.AEAD

	mu sync.Mutex
	// floorUS: what began before isn't known to go on, as the file, or another replica's news,
	// couldn't be read.
	floorUS int64
	ended   map[string]*endings // by token
	changes int64
	swept   time.Time

	saving sync.Mutex // held over mu
	saved  int64      // the changes that are in the file
}

// endings are one token's ended sessions.
type endings struct {
	upTo Session // those that began until then; its IssuedUS is 0 when there are none
	ids  map[string]Session
}

// New makes a Keeper with the ended sessions of the run before.
func New(cfg Config) (*Keeper, error) {
	key, err := enroll.Derive(cfg.Key, label, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	k := &Keeper{cfg: cfg, ended: map[string]*endings{}}
	if k.aead, err = cipher.NewGCMWithRandomNonce(block); err != nil {
		return nil, err
	}
	now := time.Now()
	if err := k.load(now); err != nil {
		k.floorUS = now.UnixMicro()
		cfg.Log.Warn("the file with the page's ended sessions can't be read; everybody signs in again", "file", cfg.File, "err", err)
	}
	return k, nil
}

// Open begins a session of a token; until, if not zero, is when the token expires.
func (k *Keeper) Open(pat string, until, now time.Time) (cookie string, expires time.Time) {
	expires = now.Add(Life)
	if !until.IsZero() && until.Before(expires) {
		expires = until
	}
	plain, _ := json.Marshal(Session{PAT: pat, ID: rand.Text(), IssuedUS: now.UnixMicro(), ExpiresUS: expires.UnixMicro()}) // strings and numbers
	return protocol.B64(k.aead.Seal(nil, nil, plain, []byte(label))), expires
}

// Find returns the token of a cookie's session; false when it's none that counts.
func (k *Keeper) Find(cookie string, now time.Time) (pat string, ok bool) {
	s, ok := k.unseal(cookie, now)
	if !ok {
		return "", false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return s.PAT, s.IssuedUS >= k.floorUS && !k.hasEnded(s)
}

// End ends a cookie's session, here and on every replica.
func (k *Keeper) End(cookie string, now time.Time) {
	s, ok := k.unseal(cookie, now)
	if !ok || !k.Ended([]Session{s}, now) {
		return
	}
	if k.cfg.Tell != nil {
		k.cfg.Tell(s)
	}
	k.keep(now)
}

// Ended notes ended sessions, of other replicas too, and tells whether one of them is news.
func (k *Keeper) Ended(all []Session, now time.Time) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sweep(now)
	for _, s := range all {
		if s.PAT != "" && now.UnixMicro() < s.ExpiresUS && !k.hasEnded(s) {
			k.note(s)
			k.changes++
			news = true
		}
	}
	return news
}

// EndAll ends every session that began until now, of all tokens. It's for when it can't be known
// which ones ended.
func (k *Keeper) EndAll(now time.Time) {
	k.mu.Lock()
	k.floorUS = now.UnixMicro() + 1
	k.changes++
	k.mu.Unlock()
	k.cfg.Log.Warn("another replica ended sessions of the page in a way that this version doesn't understand; everybody signs in again")
	k.keep(now)
}

// keep writes the file, or says that it couldn't.
func (k *Keeper) keep(now time.Time) {
	if err := k.save(now); err != nil {
		k.cfg.Log.Warn("that a session of the page has ended could not be written; a restart may forget it", "file", k.cfg.File, "err", err)
	}
}

// All returns the ended sessions that are known and would otherwise go on.
func (k *Keeper) All(now time.Time) []Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all(now)
}

// all is All; mu is held.
func (k *Keeper) all(now time.Time) (all []Session) {
	for _, e := range k.ended {
		if now.UnixMicro() < e.upTo.ExpiresUS {
			all = append(all, e.upTo)
		}
		for _, s := range e.ids {
			if now.UnixMicro() < s.ExpiresUS {
				all = append(all, s)
			}
		}
	}
	return all
}

// hasEnded tells whether a session's end is known; mu is held.
func (k *Keeper) hasEnded(s Session) bool {
	e := k.ended[s.PAT]
	if e == nil {
		return false
	}
	_, ok := e.ids[s.ID]
	return ok || s.IssuedUS <= e.upTo.IssuedUS
}

// note keeps the end of a session, or of all until one; mu is held.
func (k *Keeper) note(s Session) {
	e := k.ended[s.PAT]
	if e == nil {
		e = &endings{ids: map[string]Session{}}
		k.ended[s.PAT] = e
	}
	if s.ID != "" {
		e.ids[s.ID] = s
		if len(e.ids) <= maxEnded {
			return
		}
		for _, o := range e.ids {
			if o.IssuedUS < s.IssuedUS {
				s = o
			}
		}
		s = Session{PAT: s.PAT, IssuedUS: s.IssuedUS, ExpiresUS: s.IssuedUS + Life.Microseconds()}
	}
	e.upTo = s
	for id, o := range e.ids {
		if o.IssuedUS <= s.IssuedUS {
			delete(e.ids, id)
		}
	}
}

// sweep forgets what has expired, now and then; mu is held.
func (k *Keeper) sweep(now time.Time) {
	if now.Sub(k.swept) < sweepEvery {
		return
	}
	k.swept = now
	for pat, e := range k.ended {
		for id, s := range e.ids {
			if now.UnixMicro() >= s.ExpiresUS {
				delete(e.ids, id)
			}
		}
		if len(e.ids) == 0 && now.UnixMicro() >= e.upTo.ExpiresUS {
			delete(k.ended, pat)
		}
	}
}

// unseal opens a cookie; false for one that isn't ours, was changed or has expired.
func (k *Keeper) unseal(cookie string, now time.Time) (s Session, ok bool) {
	if len(cookie) > maxCookie {
		return s, false
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(cookie)
	if err != nil {
		return s, false
	}
	plain, err := k.aead.Open(nil, nil, sealed, []byte(label))
	if err != nil || strict.Unmarshal(plain, &s, strict.Limits{}) != nil {
		return Session{}, false
	}
	return s, s.ID != "" && now.UnixMicro() < s.ExpiresUS
}
