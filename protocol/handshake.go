package protocol

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
)

// Domain tags begin whatever is hashed or signed, so that no signature can be used for
// another purpose.
const (
	domainServer     = "drover/tunnel/v1/server"
	domainAgent      = "drover/tunnel/v1/agent"
	domainSeal       = "drover/seal/v1"
	domainKey        = "drover/key/v1"
	domainEnrol      = "drover/enroll/v1/agent"
	domainEnrolReply = "drover/enroll/v1/server"
	domainNextKey    = "drover/tunnel/v1/next-key"
)

// NonceSize is the length of both sides' nonces, in bytes.
const NonceSize = 32

// MaxDeadlineMS bounds a call's deadline: 24 hours, in milliseconds.
const MaxDeadlineMS = 24 * 60 * 60 * 1000

// B64 encodes keys, nonces, seals and signatures: base64url without padding.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// UnB64 decodes B64 of exactly n bytes. Other lengths, padding and non-canonical
// spellings are errors.
func UnB64(s string, n int) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != n {
		return nil, errors.New("protocol: not base64url of the right length")
	}
	return b, nil
}

// Hello is the agent's first frame.
type Hello struct {
	Type     Type   `json:"type"`
	AgentID  string `json:"agent_id"`
	Versions []int  `json:"versions"` // newest first
	// Generation counts the agent's keys; the server refuses any but the current one.
	Generation int64 `json:"generation"`
	// Instance is random and new at each start of the agent.
	Instance string `json:"instance"`
	// LastEpoch is the epoch of the last welcome this identity saw; 0 before the first.
	LastEpoch    int64        `json:"last_epoch"`
	Nonce        string       `json:"nonce"` // B64 of NonceSize bytes
	Facts        Facts        `json:"facts"`
	Capabilities []Capability `json:"capabilities"`
}

// Challenge is the server's answer to a hello, signed with the server's key.
type Challenge struct {
	Type      Type   `json:"type"`
	Nonce     string `json:"nonce"`     // B64 of NonceSize bytes
	Signature string `json:"signature"` // B64 of Ed25519(ServerTranscript)
}

// Auth is the agent's proof, signed with the agent's key.
type Auth struct {
	Type      Type   `json:"type"`
	Signature string `json:"signature"` // B64 of Ed25519(AgentTranscript)
}

// Welcome ends the handshake.
type Welcome struct {
	Type        Type  `json:"type"`
	Version     int   `json:"version"`
	Epoch       int64 `json:"epoch"`          // this connection's number, from the store
	KeepAliveMS int64 `json:"keep_alive_ms"`  // the server pings this often; read deadlines are twice it
	ServerTime  int64 `json:"server_time_us"` // microseconds UTC: to see clock skew, never to refuse
	// NextServerKey and its signature by the present key announce a change of the server's key.
	NextServerKey          string `json:"next_server_key,omitempty"`
	NextServerKeySignature string `json:"next_server_key_signature,omitempty"`
}

// Refuse ends a handshake without success.
type Refuse struct {
	Type         Type   `json:"type"`
	Code         Code   `json:"code"`
	Reason       string `json:"reason"` // unknown removed generation version quarantined duplicate busy malformed
	Message      string `json:"message"`
	RetryAfterMS int64  `json:"retry_after_ms"` // don't come back sooner
}

// Transcript hashes what both signatures cover: the hello's bytes as sent, both nonces
// (the agent's is in the hello), and both public keys.
func transcript(domain string, hello, serverNonce []byte, agentKey, serverKey ed25519.PublicKey) []byte {
	return digest(domain, hello, serverNonce, agentKey, serverKey)
}

// ServerTranscript is what the server signs in its challenge.
func ServerTranscript(hello, serverNonce []byte, agentKey, serverKey ed25519.PublicKey) []byte {
	return transcript(domainServer, hello, serverNonce, agentKey, serverKey)
}

// AgentTranscript is what the agent signs in its auth.
func AgentTranscript(hello, serverNonce []byte, agentKey, serverKey ed25519.PublicKey) []byte {
	return transcript(domainAgent, hello, serverNonce, agentKey, serverKey)
}

// NextKeyTranscript is what the server's present key signs to announce the next one.
func NextKeyTranscript(next ed25519.PublicKey) []byte { return digest(domainNextKey, next) }

// Seal binds a request to one agent key: SHA-256(domain ‖ fingerprint ‖ generation ‖ call
// id ‖ tool ‖ argument bytes), each part length-prefixed. The server computes it from the
// agent's stored row, the agent from its own key.
func Seal(agentFingerprint []byte, generation int64, callID, tool string, args []byte) []byte {
	var gen [8]byte
	binary.BigEndian.PutUint64(gen[:], uint64(generation))
	return digest(domainSeal, agentFingerprint, gen[:], []byte(callID), []byte(tool), args)
}

// Fingerprint names a public key: SHA-256 with a domain tag, 32 bytes.
func Fingerprint(key ed25519.PublicKey) []byte { return digest(domainKey, key) }

// digest is SHA-256 over the domain tag and the parts, each preceded by its length as
// eight bytes, big endian.
func digest(domain string, parts ...[]byte) []byte {
	h := sha256.New()
	var n [8]byte
	write := func(b []byte) {
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	write([]byte(domain))
	for _, p := range parts {
		write(p)
	}
	return h.Sum(nil)
}

// EnrolTokenPrefix begins every enrolment token.
const EnrolTokenPrefix = "drv_enr_"

// EnrolToken is a one-time right to register one agent key. It travels to the host by the
// operator's hand; over the network only signatures made with it do, so that whoever
// listens or stands between can't use it. It also carries the server key's fingerprint:
// the very first contact is verified.
type EnrolToken struct {
	ID     [16]byte // names the token to the server
	Seed   [32]byte // Ed25519 seed; the server stores the public key alone
	Server [32]byte // Fingerprint of the server's key
}

// String is the token's text: prefix and 107 characters of base64url.
func (t EnrolToken) String() string {
	b := append(append(append([]byte{}, t.ID[:]...), t.Seed[:]...), t.Server[:]...)
	return EnrolTokenPrefix + B64(b)
}

// Key is the token's signing key.
func (t EnrolToken) Key() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(t.Seed[:]) }

// ParseEnrolToken reads a token's text; surrounding white space is allowed.
func ParseEnrolToken(s string) (EnrolToken, error) {
	var t EnrolToken
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), EnrolTokenPrefix)
	if !ok {
		return t, errors.New("not an enrolment token: it begins with " + EnrolTokenPrefix)
	}
	b, err := UnB64(rest, 80)
	if err != nil {
		return t, errors.New("the enrolment token is damaged: copy it whole")
	}
	copy(t.ID[:], b)
	copy(t.Seed[:], b[16:])
	copy(t.Server[:], b[48:])
	return t, nil
}

// EnrolRequest is the body of POST /agent/v1/enroll.
type EnrolRequest struct {
	TokenID   string `json:"token_id"`  // B64 of 16 bytes
	AgentKey  string `json:"agent_key"` // B64 of the public key made on the host
	Nonce     string `json:"nonce"`     // B64 of NonceSize bytes
	Hostname  string `json:"hostname"`  // for the record and for display
	Signature string `json:"signature"` // B64 of Ed25519(EnrolTranscript) by the token's key
	Proof     string `json:"proof"`     // the same transcript signed by the agent's key
}

// EnrolReply is the answer, signed by the server's key. The same agent key asking again
// with the same token gets the same answer, so that a lost reply costs nothing.
type EnrolReply struct {
	AgentID    string `json:"agent_id"`
	Generation int64  `json:"generation"`
	ServerKey  string `json:"server_key"` // B64; its Fingerprint is in the token
	Signature  string `json:"signature"`  // B64 of Ed25519(EnrolReplyTranscript)
}

// EnrolTranscript is what the token's key and the agent's key sign.
func EnrolTranscript(tokenID, agentKey, nonce []byte, hostname string, serverFingerprint []byte) []byte {
	return digest(domainEnrol, tokenID, agentKey, nonce, []byte(hostname), serverFingerprint)
}

// EnrolReplyTranscript is what the server's key signs: the request's transcript and what
// was granted.
func EnrolReplyTranscript(request []byte, agentID string, generation int64) []byte {
	var gen [8]byte
	binary.BigEndian.PutUint64(gen[:], uint64(generation))
	return digest(domainEnrolReply, request, []byte(agentID), gen[:])
}
