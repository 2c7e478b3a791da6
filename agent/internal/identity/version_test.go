package identity

import (
	"crypto/ed25519"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// state1 is how the first builds read stateFile: they call one with another member damaged. It
// stays as it is for as long as an agent may be put back to such a build.
type state1 struct {
	AgentID       string `json:"agent_id"`
	Generation    int64  `json:"generation"`
	ServerKey     string `json:"server_key"`
	NextServerKey string `json:"next_server_key,omitempty"`
	ServerURL     string `json:"server_url"`
}

// asBefore reads a state folder as the first builds do.
func asBefore(t *testing.T, when, dir string) (st state1) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := strict.Unmarshal(b, &st, strict.Limits{MaxBytes: 64 << 10}); err != nil {
		t.Errorf("%s: %s: %v", when, b, err)
	}
	return st
}

// TestAStateFolderOfAnEarlierBuild: testdata/v1 was written by a first build. It's read as what
// it is, and after each change that first build can still read it.
func TestAStateFolderOfAnEarlierBuild(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(os.Mkdir(dir, 0o700), checkPrivate(dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{stateFile, keyFile, epochFile} { // git keeps no modes
		b, err := os.ReadFile(filepath.Join("testdata/v1", name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, b, 0o600), closeToOthers(path)); err != nil {
			t.Fatal(err)
		}
	}
	want := asBefore(t, "as it was", dir)
	id, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = id.Close() })
	key := func(b byte) ed25519.PublicKey {
		return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(b)), ed25519.SeedSize))).Public().(ed25519.PublicKey)
	}
	if keys := id.ServerKeys(); id.AgentID() != "web-01" || id.Generation() != 2 || id.LastEpoch() != 42 || !id.Key().Equal(key(7)) || len(keys) != 2 || !keys[0].Equal(key(8)) || !keys[1].Equal(key(9)) {
		t.Errorf("%+v, epoch %d, %v", id.state, id.LastEpoch(), keys)
	}
	if _, known := id.EnrolledBy(protocol.EnrolToken{}); known {
		t.Error("nobody noted its token")
	}
	if err := id.SetServerURL("https://other.example.org"); err != nil {
		t.Fatal(err)
	}
	want.ServerURL = "https://other.example.org"
	if d := cmp.Diff(want, asBefore(t, "with another URL", dir)); d != "" {
		t.Error(d)
	}
	if err := id.SawServerKey(key(9), nil); err != nil {
		t.Fatal(err)
	}
	asBefore(t, "with the next server key", dir)
}

// TestAStateFolderForAnEarlierBuild: what this build enrols, also in the place of another
// enrolment, a first build can read; and this build still knows the token that made it.
func TestAStateFolderForAnEarlierBuild(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what's open can't be replaced here; the error says to stop the agent")
	}
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	open := func(when string) *Identity {
		t.Helper()
		asBefore(t, when, e.Dir)
		id, err := Open(e.Dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = id.Close() })
		if is, known := id.EnrolledBy(r.token); !is || !known {
			t.Errorf("%s: it doesn't know its token", when)
		}
		return id
	}
	if _, err := Enrol(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if err := open("enrolled").SetServerURL("https://other.example.org"); err != nil {
		t.Fatal(err)
	}
	open("with another URL")
	r2, ts2 := newRegistrar(t)
	r = r2
	e.Server, e.Token, e.Replace, e.Client = ts2.URL, r2.token.String(), true, http.DefaultClient
	if _, err := Enrol(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	open("enrolled anew")

	// A first build that enrols the host again leaves the note of a key that's gone.
	_, err := makeKey(filepath.Join(e.Dir, "other"), false)
	if err == nil {
		err = os.Rename(filepath.Join(e.Dir, "other"), filepath.Join(e.Dir, keyFile))
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = id.Close() })
	if _, known := id.EnrolledBy(r.token); known {
		t.Error("another enrolment's token is taken for this one's")
	}
}

// TestAStateFolderOfALaterBuild: a member that isn't known here is no damage.
func TestAStateFolderOfALaterBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), stateFile)
	if err := os.WriteFile(path, []byte(`{"agent_id":"web-01","generation":2,"server_key":"k","server_url":"u","later":{"x":1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := readState(path); err != nil || st.AgentID != "web-01" {
		t.Errorf("%+v %v", st, err)
	}
}
