package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/durable"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// A new enrolment takes an old one's place in steps, of which each leaves one of the two
// whole: the new key waits in a file of its own, named after its token, so that a try whose
// answer was lost is repeated with the same one. Once the server has accepted it, nextState
// is written. From then on the new enrolment is the one that counts: whoever opens the
// folder finishes what is left to do.
const (
	nextState = "next.json"
	enrolLock = "enrol.lock"
)

// nextKey is the file of the key that waits for its registration by this token.
func nextKey(token string) string { return "next." + token + ".key" }

// replace puts a new enrolment in the place of the one in the folder.
func (e *Enrolment) replace(key ed25519.PrivateKey, st State) error {
	release, err := hold(e.Dir, enrolLock)
	if err != nil {
		return err
	}
	defer release()
	path := filepath.Join(e.Dir, nextKey(st.Token))
	if have, err := readKey(path); err != nil || !have.Equal(key) { // another enrolment cleared up
		if err := writeKey(path, key); err != nil {
			return err
		}
	}
	if err := writeState(filepath.Join(e.Dir, nextState), st); err != nil {
		return err
	}
	if err := apply(e.Dir); err != nil {
		return fmt.Errorf("the new enrolment is accepted and kept, but can't be put in place yet; stop the agent that runs on %s and start it again: %w", e.Dir, err)
	}
	return nil
}

// finish ends a replacement that was cut short after the server had accepted it.
func finish(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, nextState)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	release, err := hold(dir, enrolLock)
	if err != nil {
		return err
	}
	defer release()
	return apply(dir)
}

// apply puts the enrolment that nextState holds in place, if there's one. Each step may
// have been done before. The lock is held.
func apply(dir string) error {
	next := filepath.Join(dir, nextState)
	st, err := readState(next)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Token == "" { // all but the last step is done
		return durable.Rename(next, filepath.Join(dir, stateFile))
	}
	if _, err := protocol.UnB64(st.Token, tokenIDSize); err != nil {
		return fmt.Errorf("%s is damaged: token: %w", next, err)
	}
	err = durable.Rename(filepath.Join(dir, nextKey(st.Token)), filepath.Join(dir, keyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Remove(filepath.Join(dir, epochFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	waiting, err := filepath.Glob(filepath.Join(dir, nextKey("*")))
	if err != nil {
		waiting = nil // a folder whose name is a pattern: they do no harm
	}
	for _, path := range waiting { // of tokens that came to nothing
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	key, err := readKey(filepath.Join(dir, keyFile))
	if err != nil {
		return err
	}
	if err := noteMadeBy(dir, key, st.Token); err != nil {
		return err
	}
	st.Token = ""
	if err := writeState(next, st); err != nil {
		return err
	}
	return durable.Rename(next, filepath.Join(dir, stateFile))
}

// madeByFile says by which token the enrolment with this key was made. The version before
// doesn't know it: it may leave it beside an enrolment of its own, which has another key.
const madeByFile = "madeby.json"

// maker is what madeByFile holds.
type maker struct {
	Key   string `json:"key"` // the agent's public one
	Token string `json:"token"`
}

func publicOf(key ed25519.PrivateKey) string { return protocol.B64(key.Public().(ed25519.PublicKey)) }

func noteMadeBy(dir string, key ed25519.PrivateKey, token string) error {
	b, err := json.Marshal(maker{publicOf(key), token})
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, madeByFile), append(b, '\n'))
}

// madeBy is the id of the token that made the enrolment in dir, which has this key; "" where
// nobody noted it.
func (st *State) madeBy(dir string, key ed25519.PrivateKey) string {
	b, err := os.ReadFile(filepath.Join(dir, madeByFile))
	var m maker
	if err == nil && strict.Unmarshal(b, &m, limits) == nil && m.Key == publicOf(key) {
		return m.Token
	}
	return st.Token
}

// place writes the state of the enrolment with this key, whose key is in place.
func place(dir string, key ed25519.PrivateKey, st State) error {
	if st.Token != "" {
		if err := noteMadeBy(dir, key, st.Token); err != nil {
			return err
		}
	}
	st.Token = ""
	return writeState(filepath.Join(dir, stateFile), st)
}

// limits are those of the folder's JSON files. Members that a newer version has added are passed
// over: it adds none that a version without it must not overlook.
var limits = strict.Limits{MaxBytes: 64 << 10, Extra: true}

// tokenIDSize is the length of a token's id, in bytes.
const tokenIDSize = len(protocol.EnrolToken{}.ID)

// EnrolledBy tells whether the enrolment was made with this token; known is false where an
// earlier version of the agent made it, and didn't note the token.
func (id *Identity) EnrolledBy(token protocol.EnrolToken) (is, known bool) {
	by := id.get().Token
	return by == protocol.B64(token.ID[:]), by != ""
}

// ServerOf is the base URL of the server that the enrolment in dir is with; "" if there's no
// enrolment that can be read.
func ServerOf(dir string) string {
	if err := finish(dir); err != nil {
		return ""
	}
	st, err := readState(filepath.Join(dir, stateFile))
	if err != nil {
		return ""
	}
	return st.ServerURL
}

func readState(path string) (st State, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	if err := strict.Unmarshal(b, &st, limits); err != nil {
		return st, fmt.Errorf("%s is damaged (%w); enrol again with --replace", path, err)
	}
	return st, nil
}

// errReplaced is what an agent meets that still runs on an enrolment that was replaced.
var errReplaced = errors.New("the state folder has another enrolment now; start this agent again")

// store writes a changed state, unless another enrolment has taken this one's place.
func (id *Identity) store(st State) error {
	release, err := hold(id.dir, enrolLock)
	if err != nil {
		return err
	}
	defer release()
	if err := apply(id.dir); err != nil {
		return err
	}
	if key, err := readKey(filepath.Join(id.dir, keyFile)); err == nil && !key.Equal(id.key) {
		return errReplaced
	}
	return place(id.dir, id.key, st)
}

func writeState(path string, st State) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(b, '\n'))
}
