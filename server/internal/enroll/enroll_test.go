package enroll_test

import (
	"bytes"
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
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

type rig struct {
	t      *testing.T
	db     *store.DB
	s      *enroll.Service
	http   *httptest.Server
	key    ed25519.PrivateKey
	mu     sync.Mutex
	closed []fleet.AgentID
}

func newRig(t *testing.T) *rig {
	db, err := store.Open(t.Context(), store.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	key, err := enroll.LoadServerKey(filepath.Join(t.TempDir(), enroll.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, db: db, key: key}
	r.s = enroll.New(enroll.Config{Store: db, ServerKey: key, CloseAgent: func(id fleet.AgentID, code int, _ string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if code != protocol.CloseRemoved {
			t.Errorf("closed with %d", code)
		}
		r.closed = append(r.closed, id)
	}})
	r.http = httptest.NewServer(r.s)
	t.Cleanup(func() {
		r.http.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) token(spec enroll.Spec) protocol.EnrolToken {
	r.t.Helper()
	text, _, err := r.s.Create(r.t.Context(), "pat:1", spec)
	if err != nil {
		r.t.Fatal(err)
	}
	tok, err := protocol.ParseEnrolToken(text)
	if err != nil {
		r.t.Fatal(err)
	}
	return tok
}

func newKey() ed25519.PrivateKey {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	return key
}

// request makes a right enrolment.
func (r *rig) request(tok protocol.EnrolToken, key ed25519.PrivateKey) protocol.EnrolRequest {
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	pub := key.Public().(ed25519.PublicKey)
	transcript := protocol.EnrolTranscript(tok.ID[:], pub, nonce, "h\x1b[2J", tok.Server[:])
	return protocol.EnrolRequest{TokenID: protocol.B64(tok.ID[:]), AgentKey: protocol.B64(pub), Nonce: protocol.B64(nonce), Hostname: "h\x1b[2J",
		Signature: protocol.B64(ed25519.Sign(tok.Key(), transcript)), Proof: protocol.B64(ed25519.Sign(key, transcript))}
}

func (r *rig) send(body []byte, headers ...string) (int, []byte) {
	r.t.Helper()
	req, _ := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.http.URL+"/agent/v1/enroll", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, b
}

func (r *rig) post(req protocol.EnrolRequest) (int, protocol.EnrolReply) {
	r.t.Helper()
	body, _ := json.Marshal(req)
	status, b := r.send(body)
	var reply protocol.EnrolReply
	if status == http.StatusOK {
		if err := json.Unmarshal(b, &reply); err != nil {
			r.t.Fatal(err)
		}
	}
	return status, reply
}

func code(err error) protocol.Code {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Code
	}
	return ""
}

func TestEnrol(t *testing.T) {
	r := newRig(t)
	tok := r.token(enroll.Spec{Agent: "web-01", Labels: map[string]string{"env": "prod"}})
	key := newKey()
	status, reply := r.post(r.request(tok, key))
	if status != 200 || reply.AgentID != "web-01" || reply.Generation != 1 {
		t.Fatalf("%d %+v", status, reply)
	}
	a := r.db.Snapshot().Agents["web-01"]
	if a == nil || !a.Key.Equal(key.Public()) || a.Labels["env"] != "prod" || strings.ContainsRune(a.Facts.Hostname, 0x1b) {
		t.Errorf("stored %+v", a)
	}
	if status, again := r.post(r.request(tok, key)); status != 200 || again.AgentID != "web-01" || again.Generation != 1 {
		t.Errorf("the same key again: %d %+v", status, again)
	}
	if status, _ := r.post(r.request(tok, newKey())); status != 401 {
		t.Errorf("another key with a used token: %d", status)
	}
	if !r.db.Snapshot().Agents["web-01"].Key.Equal(key.Public()) {
		t.Error("the key was changed")
	}
}

func TestReplyIsSigned(t *testing.T) {
	r := newRig(t)
	tok := r.token(enroll.Spec{Agent: "web-01"})
	req := r.request(tok, newKey())
	_, reply := r.post(req)
	pub, _ := protocol.UnB64(reply.ServerKey, 32)
	if !bytes.Equal(protocol.Fingerprint(pub), tok.Server[:]) {
		t.Fatal("another server key than the token's")
	}
	agent, _ := protocol.UnB64(req.AgentKey, 32)
	nonce, _ := protocol.UnB64(req.Nonce, 32)
	sig, _ := protocol.UnB64(reply.Signature, 64)
	transcript := protocol.EnrolReplyTranscript(protocol.EnrolTranscript(tok.ID[:], agent, nonce, req.Hostname, tok.Server[:]), "web-01", 1)
	if !ed25519.Verify(pub, transcript, sig) {
		t.Error("wrong signature")
	}
}

func TestRefusedEnrolments(t *testing.T) {
	r := newRig(t)
	open := r.token(enroll.Spec{Agent: "web-01"})
	revoked := r.token(enroll.Spec{Agent: "web-02"})
	if err := r.s.Revoke(t.Context(), "pat:1", protocol.B64(revoked.ID[:])); err != nil {
		t.Fatal(err)
	}
	unknown, stolenID := open, open
	unknown.ID[0]++
	stolenID.Seed[0]++
	good := r.request(open, newKey())
	otherKey := good
	otherKey.AgentKey = protocol.B64(newKey().Public().(ed25519.PublicKey))
	noProof := good
	noProof.Proof = good.Signature
	otherHost := good
	otherHost.Hostname = "other"
	for name, req := range map[string]protocol.EnrolRequest{
		"unknown token": r.request(unknown, newKey()), "the id without the seed": r.request(stolenID, newKey()), "revoked": r.request(revoked, newKey()),
		"another key put in": otherKey, "no proof of the key": noProof, "hostname changed": otherHost,
	} {
		if status, _ := r.post(req); status != 401 {
			t.Errorf("%s: %d", name, status)
		}
	}
	body, _ := json.Marshal(good)
	for name, c := range map[string]struct {
		body    string
		headers []string
		want    int
	}{
		"empty":       {"", nil, 400},
		"null":        {"null", nil, 400},
		"unknown":     {strings.Replace(string(body), `{`, `{"agent_id":"web-09",`, 1), nil, 400},
		"twice":       {strings.Replace(string(body), `{`, `{"token_id":"x",`, 1), nil, 400},
		"trailing":    {string(body) + "{}", nil, 400},
		"short":       {strings.Replace(string(body), `"nonce":"`, `"nonce":"A`, 1), nil, 400},
		"huge":        {strings.Repeat(" ", 1<<20), nil, 413},
		"form":        {string(body), []string{"Content-Type", "text/plain"}, 400},
		"from a page": {string(body), []string{"Origin", "https://evil.example"}, 403},
	} {
		if status, b := r.send([]byte(c.body), c.headers...); status != c.want || !bytes.Contains(b, []byte(`"code"`)) {
			t.Errorf("%s: %d %s", name, status, b)
		}
	}
	if status, _ := r.post(good); status != 200 {
		t.Errorf("the right one, afterwards: %d", status)
	}
}

func TestExpiry(t *testing.T) {
	r := newRig(t)
	tok := r.token(enroll.Spec{Agent: "web-01", TTL: time.Second})
	got, err := r.db.EnrolToken(t.Context(), protocol.B64(tok.ID[:]))
	if err != nil {
		t.Fatal(err)
	}
	if s := got.State(got.CreatedAt.Add(time.Second)); s != "expired" {
		t.Errorf("after its time: %s", s)
	}
	if s := got.State(got.CreatedAt.Add(time.Second - time.Millisecond)); s != "open" {
		t.Errorf("before: %s", s)
	}
	_, _, err = r.db.Enrol(t.Context(), enroll.Enrolment{TokenID: got.ID, Key: newKey().Public().(ed25519.PublicKey), At: got.ExpiresAt}, fleet.AdminEvent{Action: "enroll.use"})
	if code(err) != protocol.CodeUnauthenticated {
		t.Errorf("used when expired: %v", err)
	}
	for _, ttl := range []time.Duration{-1, time.Millisecond, enroll.MaxTTL + 1} {
		if _, _, err := r.s.Create(t.Context(), "pat:1", enroll.Spec{Agent: "web-02", TTL: ttl}); code(err) != protocol.CodeBadArgs {
			t.Errorf("ttl %s: %v", ttl, err)
		}
	}
}

func TestReplaceAndRemove(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if _, _, err := r.s.Create(ctx, "pat:1", enroll.Spec{Agent: "web-01", Replace: true}); code(err) != protocol.CodeNotFound {
		t.Errorf("replace what isn't there: %v", err)
	}
	r.post(r.request(r.token(enroll.Spec{Agent: "web-01", Labels: map[string]string{"env": "prod"}}), newKey()))
	if _, _, err := r.s.Create(ctx, "pat:1", enroll.Spec{Agent: "web-01"}); code(err) != protocol.CodeConflict {
		t.Errorf("an id that exists: %v", err)
	}
	key := newKey()
	earlier := r.token(enroll.Spec{Agent: "web-01", Replace: true})
	status, reply := r.post(r.request(r.token(enroll.Spec{Agent: "web-01", Replace: true}), key))
	if status != 200 || reply.Generation != 2 || len(r.closed) != 1 {
		t.Errorf("replaced: %d %+v, closed %v", status, reply, r.closed)
	}
	if status, _ := r.post(r.request(earlier, newKey())); status != 401 {
		t.Errorf("an earlier token, after the agent has changed hands: %d", status)
	}
	if rows, _, err := r.db.Records(ctx, store.RecordFilter{Kind: store.KindAdmin, Agent: "web-01"}); err != nil || len(rows) != 5 {
		t.Errorf("the record of what was done to the agent: %d rows, %v", len(rows), err)
	}
	if a := r.db.Snapshot().Agents["web-01"]; a.Generation != 2 || a.Labels["env"] != "prod" || !a.Key.Equal(key.Public()) {
		t.Errorf("%+v", a)
	}
	waiting := r.token(enroll.Spec{Agent: "web-01", Replace: true})
	if err := r.s.RemoveAgent(ctx, "pat:1", "web-01"); err != nil {
		t.Fatal(err)
	}
	if len(r.closed) != 2 {
		t.Errorf("closed %v", r.closed)
	}
	if status, _ := r.post(r.request(waiting, newKey())); status != 401 && status != 409 {
		t.Errorf("a token of a removed agent: %d", status)
	}
	if err := r.s.RemoveAgent(ctx, "pat:1", "web-01"); code(err) != protocol.CodeNotFound {
		t.Errorf("removed twice: %v", err)
	}
	for _, replace := range []bool{true, false} {
		if _, _, err := r.s.Create(ctx, "pat:1", enroll.Spec{Agent: "web-01", Replace: replace}); code(err) != protocol.CodeConflict {
			t.Errorf("a tombstone, replace %t: %v", replace, err)
		}
	}
}

// Two hosts use one token at the same moment: one becomes the agent.
func TestOneWinner(t *testing.T) {
	r := newRig(t)
	tok := r.token(enroll.Spec{Agent: "web-01"})
	var wg sync.WaitGroup
	won := make(chan int, 8)
	for range 8 {
		wg.Go(func() {
			status, _ := r.post(r.request(tok, newKey()))
			won <- status
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for status := range won {
		switch status {
		case 200:
			n++
		case 401:
		default:
			t.Errorf("status %d", status)
		}
	}
	if n != 1 {
		t.Errorf("%d winners", n)
	}
}

func TestActsAreOnRecord(t *testing.T) {
	r := newRig(t)
	tok := r.token(enroll.Spec{Agent: "web-01"})
	r.post(r.request(tok, newKey()))
	r.post(r.request(tok, newKey())) // refused
	if err := r.s.RemoveAgent(t.Context(), "pat:1", "web-01"); err != nil {
		t.Fatal(err)
	}
	rows, _, err := r.db.Records(t.Context(), store.RecordFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, row := range rows {
		all.Write(row.Body)
		all.WriteByte('\n')
	}
	for _, action := range []string{"enroll.create", "enroll.use", "enroll.refused", "agent.remove"} {
		if !strings.Contains(all.String(), action) {
			t.Errorf("%s isn't on record:\n%s", action, all.String())
		}
	}
	if strings.Contains(all.String(), protocol.B64(tok.Seed[:])) {
		t.Error("the token's secret is on record")
	}
}

func TestLabels(t *testing.T) {
	for _, c := range []struct {
		k, v string
		ok   bool
	}{{"env", "prod", true}, {"a.b/c-d_e", "", true}, {"", "x", false}, {"a b", "x", false}, {"é", "x", false}, {"k", "a\nb", false},
		{"k", strings.Repeat("x", 129), false}, {strings.Repeat("k", 64), "x", false}, {"k", "x\u202ey", false}} {
		if err := fleet.CheckLabels(map[string]string{c.k: c.v}); (err == nil) != c.ok {
			t.Errorf("%q=%q: %v", c.k, c.v, err)
		}
	}
}

func TestServerKey(t *testing.T) {
	dir := t.TempDir()
	keys := make(chan ed25519.PrivateKey, 8)
	var wg sync.WaitGroup
	for range 8 { // several processes start at once
		wg.Go(func() {
			key, err := enroll.LoadServerKey(filepath.Join(dir, enroll.KeyFile))
			if err != nil {
				t.Error(err)
			}
			keys <- key
		})
	}
	wg.Wait()
	close(keys)
	first := <-keys
	for key := range keys {
		if !key.Equal(first) {
			t.Error("two keys were made")
		}
	}
	path := filepath.Join(dir, enroll.KeyFile)
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files stayed", len(entries))
	}
	if runtime.GOOS == "windows" {
		return
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", fi.Mode(), err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.LoadServerKey(filepath.Join(dir, enroll.KeyFile)); err == nil {
		t.Error("a readable key was taken")
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.LoadServerKey(filepath.Join(dir, enroll.KeyFile)); err == nil {
		t.Error("a damaged key was taken or replaced")
	}
}
