package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
)

// registrar is a server that grants web-01 to whoever signs with the token.
type registrar struct {
	t     *testing.T
	key   ed25519.PrivateKey // the key it answers with
	token protocol.EnrolToken
	lose  int // answers to lose
	calls int
	keys  map[string]bool
	mu    sync.Mutex // a client whose answer was lost comes by another connection
}

func newRegistrar(t *testing.T) (*registrar, *httptest.Server) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	r := &registrar{t: t, key: key, keys: map[string]bool{}}
	rand.Read(r.token.ID[:])
	rand.Read(r.token.Seed[:])
	copy(r.token.Server[:], protocol.Fingerprint(key.Public().(ed25519.PublicKey)))
	ts := httptest.NewServer(r)
	t.Cleanup(ts.Close)
	return r, ts
}

func (r *registrar) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	body, _ := io.ReadAll(req.Body)
	var e protocol.EnrolRequest
	if err := json.Unmarshal(body, &e); err != nil || req.URL.Path != EnrolPath {
		r.t.Errorf("%s: %v", req.URL, err)
	}
	if strings.Contains(string(body), protocol.B64(r.token.Seed[:])) {
		r.t.Error("the token travelled")
	}
	r.keys[e.AgentKey] = true
	pub, _ := protocol.UnB64(e.AgentKey, 32)
	nonce, _ := protocol.UnB64(e.Nonce, 32)
	transcript := protocol.EnrolTranscript(r.token.ID[:], pub, nonce, e.Hostname, r.token.Server[:])
	for _, c := range []struct {
		key ed25519.PublicKey
		sig string
	}{{r.token.Key().Public().(ed25519.PublicKey), e.Signature}, {pub, e.Proof}} {
		if sig, err := protocol.UnB64(c.sig, 64); err != nil || !ed25519.Verify(c.key, transcript, sig) {
			w.WriteHeader(401)
			_, _ = w.Write([]byte(`{"code":"unauthenticated","message":"this enrolment token isn't valid here"}`))
			return
		}
	}
	if r.calls <= r.lose {
		panic(http.ErrAbortHandler)
	}
	b, _ := json.Marshal(protocol.EnrolReply{AgentID: "web-01", Generation: 1, ServerKey: protocol.B64(r.key.Public().(ed25519.PublicKey)),
		Signature: protocol.B64(ed25519.Sign(r.key, protocol.EnrolReplyTranscript(transcript, "web-01", 1)))})
	_, _ = w.Write(b)
}

func (r *registrar) enrolment(t *testing.T, url string) Enrolment {
	return Enrolment{Dir: filepath.Join(t.TempDir(), "state"), Server: url, Token: r.token.String(), Hostname: "h\n", Client: http.DefaultClient}
}

func TestEnrolAndOpen(t *testing.T) {
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	if _, err := Open(e.Dir); !errors.Is(err, ErrNotEnrolled) {
		t.Fatalf("before: %v", err)
	}
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if id.AgentID() != "web-01" || id.Generation() != 1 || id.ServerURL() != ts.URL || id.LastEpoch() != 0 {
		t.Errorf("%+v", id.get())
	}
	if err := id.StoreEpoch(41); err != nil {
		t.Fatal(err)
	}
	if err := id.StoreEpoch(42); err != nil {
		t.Fatal(err)
	}
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.LastEpoch() != 42 || !again.Key().Equal(id.Key()) || !again.ServerKeys()[0].Equal(r.key.Public()) {
		t.Error("what was stored isn't what is read")
	}
	if _, err := Enrol(t.Context(), e); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second enrolment: %v", err)
	}
	for _, name := range []string{keyFile, stateFile, epochFile} {
		if fi, err := os.Stat(filepath.Join(e.Dir, name)); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, fi.Mode(), err)
		}
	}
}

func TestLostAnswerIsRepeated(t *testing.T) {
	r, ts := newRegistrar(t)
	r.lose = 1
	e := r.enrolment(t, ts.URL)
	if _, err := Enrol(t.Context(), e); err == nil {
		t.Fatal("no error")
	}
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if len(r.keys) != 1 {
		t.Errorf("%d keys were offered; a repeated attempt must use the same", len(r.keys))
	}
}

func TestFirstContactIsVerified(t *testing.T) {
	r, ts := newRegistrar(t)
	_, r.key, _ = ed25519.GenerateKey(rand.Reader) // somebody else answers
	e := r.enrolment(t, ts.URL)
	if _, err := Enrol(t.Context(), e); err == nil || !strings.Contains(err.Error(), "isn't the server that made the token") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(e.Dir); !errors.Is(err, ErrNotEnrolled) {
		t.Errorf("something was stored: %v", err)
	}
}

func TestServersRefusalIsShown(t *testing.T) {
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	stolen := r.token
	stolen.Seed[0]++
	e.Token = stolen.String()
	var pe *protocol.Error
	if _, err := Enrol(t.Context(), e); !errors.As(err, &pe) || pe.Code != protocol.CodeUnauthenticated {
		t.Errorf("got %v", err)
	}
}

func TestPlainHTTP(t *testing.T) {
	for url, ok := range map[string]bool{
		"http://127.0.0.1:7400": true, "http://[::1]:7400": true, "http://localhost": true, "https://drover.example.com": true,
		"wss://drover.example.com/x": true, "http://10.0.0.5:7400": false, "http://localhost.evil.com": false, "http://127.0.0.1.evil.com": false,
		"ftp://x": false, "drover.example.com": false, "https://user:pw@x": false, "https://x:99999": false, "https://x:0": false, "https://x?y=z": false,
	} {
		if err := CheckURL(url, false); (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
	}
	if err := CheckURL("http://10.0.0.5:7400", true); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

func TestReadableKeyIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has access lists instead: TestFoldersOfOthersAreRefused")
	}
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
	for path, mode := range map[string]os.FileMode{filepath.Join(e.Dir, keyFile): 0o640, e.Dir: 0o755} {
		old, _ := os.Stat(path)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(e.Dir); err == nil || !strings.Contains(err.Error(), "may be read by others") {
			t.Errorf("%s: %v", path, err)
		}
		if err := os.Chmod(path, old.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// A crash in the middle of a write leaves one slot damaged: the other one counts.
func TestTornEpoch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "epoch")
	for _, slot := range []int64{0, 1} {
		var e epochStore
		if err := e.open(path); err != nil {
			t.Fatal(err)
		}
		for i := range int64(4) {
			if err := e.set(e.get() + 1 + i); err != nil {
				t.Fatal(err)
			}
		}
		last := e.get()
		if _, err := e.f.WriteAt([]byte{0xff, 0xff}, slot*slotSize+6); err != nil {
			t.Fatal(err)
		}
		e.close()
		var again epochStore
		if err := again.open(path); err != nil {
			t.Fatal(err)
		}
		if got := again.get(); got != last && got != last-4 {
			t.Errorf("slot %d damaged: %d after %d", slot, got, last)
		}
		if err := again.set(last + 10); err != nil {
			t.Fatal(err)
		}
		again.close()
	}
}

func TestNextServerKey(t *testing.T) {
	r, ts := newRegistrar(t)
	id, err := Enrol(t.Context(), r.enrolment(t, ts.URL))
	if err != nil {
		t.Fatal(err)
	}
	present := id.ServerKeys()[0]
	next, _, _ := ed25519.GenerateKey(rand.Reader)
	if err := id.SawServerKey(present, next); err != nil {
		t.Fatal(err)
	}
	id.Close()
	again, err := Open(id.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if keys := again.ServerKeys(); len(keys) != 2 || !keys[0].Equal(present) || !keys[1].Equal(next) {
		t.Errorf("%d keys", len(keys))
	}
	if err := again.SawServerKey(next, nil); err != nil {
		t.Fatal(err)
	}
	if keys := again.ServerKeys(); len(keys) != 1 || !keys[0].Equal(next) {
		t.Errorf("%d keys after the change", len(keys))
	}
}

// TestEmptyFolderIsMadePrivate: a folder that somebody made for the agent with the usual
// mode holds no key yet, so it's taken and closed to others.
func TestEmptyFolderIsMadePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has access lists instead: TestFoldersOfOthersAreRefused")
	}
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	e.Dir = filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(e.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
	if fi, err := os.Stat(e.Dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

func TestOneAgentHoldsAFolder(t *testing.T) {
	dir := t.TempDir()
	release, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); err == nil || !strings.Contains(err.Error(), "another drover-agent") {
		t.Errorf("held twice: %v", err)
	}
	release()
	again, err := Hold(dir)
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	again()
}
