// Package identity keeps what makes this host an agent of one server: its key, made here
// and never sent, and the state of its enrolment.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/drover-fleet/drover/agent/internal/durable"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// Files of the state folder.
const (
	keyFile   = "agent.key"
	stateFile = "state.json"
	epochFile = "epoch"
)

// ErrNotEnrolled is returned by Open for a folder without an enrolment.
var ErrNotEnrolled = errors.New("this agent isn't enrolled: make a token with `drover enroll create --agent-id ID` on the server, and give it with --token-file or in DROVER_ENROLL_TOKEN")

// State is an enrolment, as state.json holds it.
type State struct {
	AgentID    string `json:"agent_id"`
	Generation int64  `json:"generation"`
	ServerKey  string `json:"server_key"` // base64url of the Ed25519 public key
	// NextServerKey was announced, signed by ServerKey; the server may use either.
	NextServerKey string `json:"next_server_key,omitempty"`
	ServerURL     string `json:"server_url"`
	// Token is the id of the token that made it: not a secret. It stands in nextState, and once
	// the enrolment is in place in madeByFile: earlier versions refuse it in stateFile.
	Token string `json:"token,omitempty"`
}

// Identity is an enrolled agent's key and state. Its methods may be called from any
// goroutine.
type Identity struct {
	dir   string
	key   ed25519.PrivateKey
	epoch epochStore

	mu         sync.Mutex
	state      State
	serverKeys []ed25519.PublicKey // the present one, and the next if it's known
}

// Open reads the identity in dir. ErrNotEnrolled (in the chain) means that Enrol must make
// it first; any other error means that what is there can't be trusted or read.
func Open(dir string) (*Identity, error) {
	id, err := open(dir)
	return id, advise(dir, err)
}

func open(dir string) (*Identity, error) {
	if err := checkPrivate(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, ErrNotEnrolled
		}
		return nil, err
	}
	if err := finish(dir); err != nil {
		return nil, err
	}
	st, err := readState(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotEnrolled
	}
	if err != nil {
		return nil, err
	}
	servers, err := st.serverKeys()
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: server key: %w", filepath.Join(dir, stateFile), err)
	}
	key, err := readKey(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	st.Token = st.madeBy(dir, key)
	id := &Identity{dir: dir, key: key, serverKeys: servers, state: st}
	if err := id.epoch.open(filepath.Join(dir, epochFile)); err != nil {
		return nil, err
	}
	return id, nil
}

// advise says what to do where this user may not use a state folder.
func advise(dir string, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	as := "another user than its own"
	if os.Geteuid() != 0 {
		as = elevated
	}
	return fmt.Errorf("this user can't use the state folder %s: run the agent %s, or give a folder of this user's with --state (%w)", dir, as, err)
}

// AgentID is the id that the operator gave.
func (id *Identity) AgentID() string { return id.get().AgentID }

// Generation counts this agent's keys.
func (id *Identity) Generation() int64 { return id.get().Generation }

// ServerURL is the base URL of the server that this agent is enrolled with.
func (id *Identity) ServerURL() string { return id.get().ServerURL }

func (id *Identity) get() State {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.state
}

// ServerKeys are the keys that the server may prove: the one it used last and, if one was
// announced, its successor.
func (id *Identity) ServerKeys() []ed25519.PublicKey {
	id.mu.Lock()
	defer id.mu.Unlock()
	return slices.Clone(id.serverKeys)
}

func (st State) serverKeys() ([]ed25519.PublicKey, error) {
	var out []ed25519.PublicKey
	for _, text := range []string{st.ServerKey, st.NextServerKey} {
		if text == "" && len(out) == 1 {
			continue
		}
		key, err := protocol.UnB64(text, ed25519.PublicKeySize)
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
	return out, nil
}

// Key is the host's public key.
func (id *Identity) Key() ed25519.PublicKey { return id.key.Public().(ed25519.PublicKey) }

// Fingerprint names the host's key; seals are made for it.
func (id *Identity) Fingerprint() []byte { return protocol.Fingerprint(id.Key()) }

// Sign signs with the host's key.
func (id *Identity) Sign(message []byte) []byte { return ed25519.Sign(id.key, message) }

// LastEpoch is the epoch that was stored last, 0 before the first.
func (id *Identity) LastEpoch() int64 { return id.epoch.get() }

// StoreEpoch stores an epoch durably, in place: it works on a full disk.
func (id *Identity) StoreEpoch(epoch int64) error { return id.epoch.set(epoch) }

// SawServerKey notes that the server proved the key used, and the key next that used has
// signed (nil: none was announced). It writes only when something changed.
func (id *Identity) SawServerKey(used, next ed25519.PublicKey) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	st := id.state
	st.ServerKey, st.NextServerKey = protocol.B64(used), ""
	if next != nil {
		st.NextServerKey = protocol.B64(next)
	}
	if st == id.state {
		return nil
	}
	keys, err := st.serverKeys()
	if err != nil {
		return err
	}
	id.state, id.serverKeys = st, keys // for this process, even when it can't be stored
	return id.store(st)
}

// SetServerURL changes where the server is reached; who it is stays pinned by its key.
func (id *Identity) SetServerURL(server string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state.ServerURL == server {
		return nil
	}
	st := id.state
	st.ServerURL = server
	if err := id.store(st); err != nil {
		return err
	}
	id.state = st
	return nil
}

// Close releases the state folder's files.
func (id *Identity) Close() error { return id.epoch.close() }

// CheckURL refuses a server's URL that can't be one, and plain http beyond loopback unless
// plaintext is set.
func CheckURL(server string, plaintext bool) error {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q isn't a server's URL; it must be like https://drover.example.com", text.Line(server, 200))
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("the port of %s isn't one: it must be from 1 to 65535", server)
		}
	}
	switch u.Scheme {
	case "https", "wss":
		return nil
	case "http", "ws":
	default:
		return fmt.Errorf("a server's URL begins with https:// (or http://), not %s://", u.Scheme)
	}
	if plaintext || loopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%s is plain http to another machine: whoever is on the way reads every command and can send their own; use https, or say --plaintext if that network is trusted", server)
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// makeKey reads the key at path, or makes one; also in place of a damaged one if anew is set.
func makeKey(path string, anew bool) (ed25519.PrivateKey, error) {
	key, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) && !(anew && errors.Is(err, errDamaged)) {
		return key, err
	}
	_, key, err = ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return key, writeKey(path, key)
}

func writeKey(path string, key ed25519.PrivateKey) error {
	text := base64.RawURLEncoding.EncodeToString(key.Seed()) + "\n"
	if err := durable.WriteFile(path, []byte(text)); err != nil {
		return err
	}
	return closeToOthers(path)
}

// errDamaged is a key file without a key.
var errDamaged = errors.New("is damaged; enrol again with --replace")

func readKey(path string) (ed25519.PrivateKey, error) {
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	seed, err := protocol.UnB64(strings.TrimSpace(string(b)), ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, errDamaged)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
