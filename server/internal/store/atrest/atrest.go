// Package atrest keeps what a copy of the database shouldn't tell out of it: what must be read
// again is sealed, and hashes of what may be guessed are keyed. The keys follow from the server's
// key, which is in no database.
package atrest

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"

	"github.com/drover-fleet/drover/server/internal/enroll"
)

// What the keys are for; each is a key of its own.
const (
	forQueued = "drover/queued/v1"
	forMatch  = "drover/match/v1"
	forSalt   = "drover/salt/v1"
)

// Keys are those of one server's key.
type Keys struct {
	queued      cipher.AEAD
	match, salt []byte
	prefix      string // of what Match makes
}

// New derives the keys. Without a server's key they're random: what they seal nobody opens, and
// what they hash matches nothing that others hash.
func New(server ed25519.PrivateKey) (*Keys, error) {
	if server == nil {
		_, server, _ = ed25519.GenerateKey(rand.Reader)
	}
	queued, err1 := enroll.Derive(server, forQueued, 32)
	match, err2 := enroll.Derive(server, forMatch, 32)
	salt, err3 := enroll.Derive(server, forSalt, 32)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	block, err := aes.NewCipher(queued)
	if err != nil {
		return nil, err
	}
	k := &Keys{match: match, salt: salt}
	k.prefix = "k" + hex.EncodeToString(mac(match, "")[:4]) + ":"
	k.queued, err = cipher.NewGCMWithRandomNonce(block)
	return k, err
}

// Seal seals the argument bytes of a queued call for this call alone.
func (k *Keys) Seal(call string, args []byte) []byte {
	return k.queued.Seal(nil, nil, args, []byte(forQueued+"/"+call))
}

// Open reverses Seal. It fails under another key, and for another call.
func (k *Keys) Open(call string, sealed []byte) ([]byte, error) {
	return k.queued.Open(nil, nil, sealed, []byte(forQueued+"/"+call))
}

// Hashes are those of an intent by which a repeat of it is known: of what is called, and of the
// use of a tool, "" for none.
type Hashes struct {
	Match, Join           string // as they're kept
	KeyedMatch, KeyedJoin string
	plain                 string
}

// Hashes keys the hashes of an intent. They're kept so, or plain, as they are.
func (k *Keys) Hashes(match, join string, plain bool) Hashes {
	h := Hashes{Match: match, Join: join, KeyedMatch: k.keyed(match), KeyedJoin: k.keyed(join), plain: match}
	if !plain {
		h.Match, h.Join = h.KeyedMatch, h.KeyedJoin
	}
	return h
}

// Same tells that a kept hash is of the same call, in either form.
func (h *Hashes) Same(kept string) bool { return kept == h.plain || kept == h.KeyedMatch }

// keyed is a hash's form that a copy of the database can't compare with a guess. It names its
// key, so that Knows tells what can be compared here.
func (k *Keys) keyed(hash string) string {
	if hash == "" {
		return ""
	}
	return k.prefix + hex.EncodeToString(mac(k.match, hash)[:16])
}

// Knows tells whether a kept hash can be compared with another: it's keyed with this key, or not
// keyed at all, as the version before writes it.
func (k *Keys) Knows(kept string) bool {
	return strings.HasPrefix(kept, k.prefix) || kept != "" && !strings.Contains(kept, ":")
}

// Veil hides a commitment's salt: beside the commitment it would let whoever has a copy try what
// the bytes may be. what names the one salt that it is.
func (k *Keys) Veil(what string, salt []byte) []byte {
	if len(salt) == 0 {
		return salt
	}
	return append(k.tag(), k.xor(what, salt)...)
}

// Unveil reverses Veil: nil when that was done with another key. One of a version before comes
// out as it is.
func (k *Keys) Unveil(what string, kept []byte) []byte {
	switch salt, ours := bytes.CutPrefix(kept, k.tag()); {
	case ours && len(kept) != clearSalt:
		return k.xor(what, salt)
	case len(kept) == clearSalt:
		return kept
	}
	return nil
}

// clearSalt is the length of a salt that isn't veiled.
const clearSalt = 16

// tag tells which key hides a salt.
func (k *Keys) tag() []byte { return mac(k.salt, "")[:4] }

// xor is its own reverse. Each salt is random, and has bytes of its own to be hidden by.
func (k *Keys) xor(what string, salt []byte) []byte {
	out := make([]byte, min(len(salt), sha256.Size))
	subtle.XORBytes(out, salt, mac(k.salt, what))
	return out
}

func mac(key []byte, s string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(s))
	return h.Sum(nil)
}
