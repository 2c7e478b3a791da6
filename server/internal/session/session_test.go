package session

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var start = time.Unix(1_700_000_000, 0)

func keyOf(b byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, 32)) }

// keeper is one replica's, whose ended sessions the others hear.
func keeper(t *testing.T, key ed25519.PrivateKey, others ...*Keeper) *Keeper {
	t.Helper()
	k, err := New(Config{Key: key, File: filepath.Join(t.TempDir(), File), Log: slog.New(slog.DiscardHandler), Tell: func(s Session) {
		for _, o := range others {
			o.Ended([]Session{s}, start)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func counts(k *Keeper, cookie string, now time.Time) bool { _, ok := k.Find(cookie, now); return ok }

func TestASessionCountsOnEveryReplicaUntilItExpires(t *testing.T) {
	a, b := keeper(t, keyOf(1)), keeper(t, keyOf(1))
	cookie, expires := a.Open("p1", time.Time{}, start)
	for name, k := range map[string]*Keeper{"the one that made it": a, "another": b} {
		if pat, ok := k.Find(cookie, expires.Add(-time.Second)); !ok || pat != "p1" {
			t.Errorf("%s: %q, %v", name, pat, ok)
		}
		if counts(k, cookie, expires) {
			t.Errorf("%s: an expired session counts", name)
		}
	}
	if expires.Sub(start) != Life {
		t.Errorf("it lasts %s", expires.Sub(start))
	}
	if again, _ := a.Open("p1", time.Time{}, start); again == cookie {
		t.Error("two sessions have one cookie")
	}
	soon := start.Add(time.Minute)
	cookie, expires = a.Open("p1", soon, start)
	if !expires.Equal(soon) || counts(b, cookie, soon) || !counts(b, cookie, soon.Add(-time.Second)) {
		t.Errorf("with a token that expires in a minute it lasts until %s", expires)
	}
}

func TestNoOtherCookieCounts(t *testing.T) {
	k := keeper(t, keyOf(1))
	cookie, _ := k.Open("p1", time.Time{}, start)
	foreign, _ := keeper(t, keyOf(2)).Open("p1", time.Time{}, start)
	for name, c := range map[string]string{
		"none": "", "of another key": foreign, "no base64": "ü", "padded": cookie + "=", "twice": cookie + cookie, "long": strings.Repeat(cookie, 20),
		"the plain text": `{"pat":"p1","id":"x","issued_us":1,"expires_us":9999999999999999}`,
	} {
		if counts(k, c, start) {
			t.Errorf("%s: it counts", name)
		}
	}
	for i := range cookie {
		if counts(k, cookie[:i], start) {
			t.Errorf("cut after %d characters it counts", i)
		}
		other := byte('A')
		if cookie[i] == other {
			other = 'B'
		}
		if counts(k, cookie[:i]+string(other)+cookie[i+1:], start) {
			t.Errorf("changed at %d it counts", i)
		}
	}
	if !counts(k, cookie, start) {
		t.Error("the cookie itself doesn't count")
	}
}

func TestAnEndedSessionIsDeadEverywhereAndAfterARestart(t *testing.T) {
	b := keeper(t, keyOf(1))
	a := keeper(t, keyOf(1), b)
	cookie, expires := a.Open("p1", time.Time{}, start)
	other, _ := a.Open("p1", time.Time{}, start)
	a.End(cookie, start)
	again, err := New(a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	// load took the clock's time, by which all of this has long expired: it's told again.
	late := keeper(t, keyOf(1))
	late.Ended(a.All(start), start)
	for name, k := range map[string]*Keeper{"here": a, "another": b, "one that is new": late} {
		if counts(k, cookie, start) || !counts(k, other, start) {
			t.Errorf("%s: the ended one counts, or the other one doesn't", name)
		}
	}
	if len(again.All(start)) != 0 || len(a.All(expires)) != 0 {
		t.Error("what has expired is kept")
	}
	now := time.Now()
	cookie, _ = a.Open("p1", time.Time{}, now)
	other, _ = a.Open("p1", time.Time{}, now)
	a.End(cookie, now)
	if again, err = New(a.cfg); err != nil {
		t.Fatal(err)
	}
	if counts(again, cookie, now) || !counts(again, other, now) {
		t.Error("after a restart the ended one counts, or the other one doesn't")
	}
	if err := os.WriteFile(a.cfg.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err = New(a.cfg); err != nil {
		t.Fatal(err)
	}
	fresh, _ := again.Open("p1", time.Time{}, time.Now())
	if counts(again, cookie, now) || counts(again, other, now) || !counts(again, fresh, time.Now()) {
		t.Error("nobody knows what has ended: what was before counts, or what is new doesn't")
	}
}

// Whoever signs in and out again and again ends their own older sessions, and nobody else's.
func TestWhatIsKeptOfATokenIsBounded(t *testing.T) {
	a, b := keeper(t, keyOf(1)), keeper(t, keyOf(1))
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Millisecond) }
	others, _ := a.Open("quiet", time.Time{}, start)
	var cookies []string
	for i := range 3 * maxEnded {
		c, _ := a.Open("loud", time.Time{}, at(i))
		cookies = append(cookies, c)
		if i%2 == 0 {
			a.End(c, at(i))
		}
	}
	for i := len(cookies) - 1; i >= 0; i-- { // in another order
		if s, _ := b.unseal(cookies[i], start); i%2 == 0 {
			b.Ended([]Session{s}, start)
		}
	}
	gone := len(cookies) - 2*maxEnded - 2 // the last one whose end isn't kept by itself any more
	for name, k := range map[string]*Keeper{"here": a, "another": b} {
		if n := len(k.All(start)); n > maxEnded+1 {
			t.Errorf("%s: %d are kept", name, n)
		}
		if !counts(k, others, start) {
			t.Errorf("%s: another token's session was ended", name)
		}
		for i, c := range cookies {
			if got, want := counts(k, c, at(i)), i%2 == 1 && i > gone; got != want {
				t.Fatalf("%s: session %d of %d counts: %v", name, i, len(cookies), got)
			}
		}
	}
	late := start.Add(Life + time.Minute)
	for i := range 3 {
		c, _ := a.Open(fmt.Sprint("later", i), time.Time{}, late)
		a.End(c, late)
	}
	if len(a.ended) != 3 {
		t.Errorf("%d tokens are kept", len(a.ended))
	}
}

// TestEveryOneEnds: when it can't be known which sessions ended, none that has begun goes on, also
// after a restart; later ones do.
func TestEveryOneEnds(t *testing.T) {
	cfg := Config{Key: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)), File: filepath.Join(t.TempDir(), File), Log: slog.New(slog.DiscardHandler)}
	k, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	old, _ := k.Open("k3v9", time.Time{}, now)
	k.EndAll(now)
	later, _ := k.Open("k3v9", time.Time{}, now.Add(time.Millisecond))
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for when, k := range map[string]*Keeper{"at once": k, "after a restart": again} {
		if _, ok := k.Find(old, now.Add(time.Second)); ok {
			t.Errorf("%s: a session goes on that may have been ended", when)
		}
		if _, ok := k.Find(later, now.Add(time.Second)); !ok {
			t.Errorf("%s: a session that began since doesn't count", when)
		}
	}
}
