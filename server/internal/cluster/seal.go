package cluster

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"

	"github.com/drover-fleet/drover/server/internal/enroll"
)

// keySize is that of AES-256.
const keySize = 32

// keys are what replicas share: all of it follows from the server's key, so that whoever can
// publish on NATS but doesn't have that key can say nothing and read nothing.
type keys struct {
	secret []byte
	open   cipher.AEAD // of single messages
	name   string      // of the deployment, in subjects
}

func newKeys(serverKey ed25519.PrivateKey) (*keys, error) {
	secret, err := enroll.Derive(serverKey, "drover/cluster/v1", keySize)
	if err != nil {
		return nil, err
	}
	k := &keys{secret: secret}
	name, err := derive(secret, "name", 8)
	if err != nil {
		return nil, err
	}
	k.name = hex.EncodeToString(name)
	k.open, err = k.aead("open")
	return k, err
}

func derive(secret []byte, info string, n int) ([]byte, error) {
	return hkdf.Key(sha256.New, secret, nil, info, n)
}

func (k *keys) aead(info string) (cipher.AEAD, error) {
	key, err := derive(k.secret, info, keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

var errForged = errors.New("cluster: a message that isn't from a replica of this deployment, or was changed")

// seal closes one message that stands alone: a random nonce, then the ciphertext, bound to
// its subject.
func (k *keys) seal(subject string, plain []byte) []byte {
	nonce := make([]byte, k.open.NonceSize(), k.open.NonceSize()+len(plain)+k.open.Overhead())
	_, _ = rand.Read(nonce) // never fails: it ends the program
	return k.open.Seal(nonce, nonce, plain, []byte(subject))
}

func (k *keys) unseal(subject string, sealed []byte) ([]byte, error) {
	n := k.open.NonceSize()
	if len(sealed) < n {
		return nil, errForged
	}
	plain, err := k.open.Open(nil, sealed[:n], sealed[n:], []byte(subject))
	if err != nil {
		return nil, errForged
	}
	return plain, nil
}

// sequence seals the messages of one way of one pipe. A message's number stands before it
// and is its nonce, so that none can be repeated or moved, and a lost one is missed.
//
// It keeps what each message would otherwise allocate, so it's for one goroutine at a time.
type sequence struct {
	aead  cipher.AEAD
	next  uint64
	bound []byte   // the subject
	n     [12]byte // the nonce
	buf   []byte   // of seal
}

// numberSize is the length of the number before a sealed message.
const numberSize = 8

// sequences are the two ways of a pipe between whoever opened it and whoever accepted.
func (k *keys) sequences(openNonce, acceptNonce string) (there, back *sequence, err error) {
	pipe := "pipe " + openNonce + " " + acceptNonce
	a, err := k.aead(pipe + " there")
	if err != nil {
		return nil, nil, err
	}
	b, err := k.aead(pipe + " back")
	return &sequence{aead: a}, &sequence{aead: b}, err
}

// nonce is that of a message; it's valid until the next one's.
func (s *sequence) nonce(number uint64) []byte {
	binary.BigEndian.PutUint64(s.n[len(s.n)-numberSize:], number)
	return s.n[:]
}

// to is the subject as what a message is bound to.
func (s *sequence) to(subject string) []byte {
	if string(s.bound) != subject {
		s.bound = []byte(subject)
	}
	return s.bound
}

// keepSealed bounds the buffer that is kept between two messages, in bytes.
const keepSealed = 64 << 10

// seal closes the next message, which is made of parts. What it returns is valid until the
// next call.
func (s *sequence) seal(subject string, parts ...[]byte) []byte {
	out := binary.BigEndian.AppendUint64(s.buf[:0], s.next)
	for _, p := range parts {
		out = append(out, p...)
	}
	out = s.aead.Seal(out[:numberSize], s.nonce(s.next), out[numberSize:], s.to(subject))
	if s.next++; cap(out) <= keepSealed {
		s.buf = out
	}
	return out
}

var (
	errGap    = errors.New("cluster: a message between replicas was lost")
	errReplay = errors.New("cluster: a message came twice")
)

// unseal opens the next message. errForged and errReplay say that it's none of the pipe's:
// it's to be passed over. errGap says that one before it is missing.
func (s *sequence) unseal(subject string, sealed []byte) ([]byte, error) {
	if len(sealed) < numberSize {
		return nil, errForged
	}
	number := binary.BigEndian.Uint64(sealed)
	plain, err := s.aead.Open(nil, s.nonce(number), sealed[numberSize:], s.to(subject))
	switch {
	case err != nil:
		return nil, errForged
	case number < s.next:
		return nil, errReplay
	case number > s.next:
		return nil, errGap
	}
	s.next++
	return plain, nil
}

// token makes a random word that is fit for a subject.
func token() string { return rand.Text() }
