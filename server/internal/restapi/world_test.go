package restapi

import (
	"context"
	"crypto/ed25519"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/session"
	"github.com/drover-fleet/drover/server/internal/store"
)

// world is the API over a real store, dispatcher and enrolment. Only the far end of the
// tunnel is played by the test.
type world struct {
	t      *testing.T
	dir    string
	close  func()
	db     *store.DB
	tokens *authn.Service
	enrol  *enroll.Service
	hosts  *hosts
	calls  *dispatch.Dispatcher
	url    string
	said   *lines // the log
}

// lines are a log's.
type lines struct {
	mu  sync.Mutex
	all []string
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

// with counts the lines that have all of these texts.
func (l *lines) with(texts ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(line, s) }) {
			n++
		}
	}
	return n
}

// hosts plays the agents' ends of the tunnels.
type hosts struct {
	mu     sync.Mutex
	online map[fleet.AgentID]bool
	soon   bool     // those that aren't online are expected to be
	ran    []string // tool and arguments, in order
	// boot, if not nil, is called when the name of an agent's journal is asked for.
	boot func()
	// answer makes the response; nil: an empty success.
	answer func(ctx context.Context, req *protocol.Request) *protocol.Response
	// stream answers calls of streaming tools.
	stream func(ctx context.Context, req *protocol.Request, x mux.Exchange) *protocol.Response
}

func (h *hosts) Route(id fleet.AgentID, _ int64) (dispatch.Caller, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h, h.online[id]
}

func (h *hosts) expected(fleet.AgentID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.soon
}

// set says whether an agent is online, and whether those that aren't are expected.
func (h *hosts) set(id fleet.AgentID, online, soon bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.online[id], h.soon = online, soon
}

func (h *hosts) Boot() string {
	if h.boot != nil {
		h.boot()
	}
	return "boot"
}

func (h *hosts) Version() int { return protocol.Version }
func (h *hosts) Resume(context.Context, string, mux.Exchange) (mux.Fate, *protocol.Response, error) {
	return mux.Fate{}, nil, protocol.ErrNotSent
}

func (h *hosts) Call(ctx context.Context, req *protocol.Request, x mux.Exchange) (*protocol.Response, error) {
	h.mu.Lock()
	h.ran = append(h.ran, req.Tool+" "+string(req.Args))
	answer, stream := h.answer, h.stream
	h.mu.Unlock()
	if x.Body != nil || x.Sink != nil {
		return stream(ctx, req, x), nil
	}
	if answer != nil {
		return answer(ctx, req), nil
	}
	return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Result: jsontext.Value(processOK), TookUS: 7}, nil
}

func (h *hosts) executed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ran)
}

const processOK = `{"exit_code":0,"stdout":"hi\n","stderr":"","stdout_bytes":3,"stderr_bytes":0,"duration_ms":1}`

func newWorld(t *testing.T, change func(*Config)) *world {
	t.Helper()
	said := &lines{}
	log := slog.New(slog.NewJSONHandler(said, nil))
	dir := t.TempDir()
	db, err := store.Open(t.Context(), store.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, db: db, said: said, tokens: authn.New(db), hosts: &hosts{online: map[fleet.AgentID]bool{}}}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.enrol = enroll.New(enroll.Config{Store: db, ServerKey: key})
	d := dispatch.New(dispatch.Config{
		Store: db, Router: w.hosts, Alive: func(string) bool { return true }, Expected: w.hosts.expected, Log: log,
		Online: func(id fleet.AgentID) (bool, time.Time) {
			_, ok := w.hosts.Route(id, 1)
			return ok, time.Time{}
		},
	})
	w.calls = d
	sessions, err := session.New(session.Config{Key: key, File: filepath.Join(dir, session.File), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Dispatch: d, PATs: w.tokens, Sessions: sessions, Enrolment: w.enrol, Store: db, Bodies: edge.NewBodies(w.tokens.Alive), Serving: edge.NewServing(w.tokens.Alive), Version: "test", Log: log}
	if change != nil {
		change(&c)
	}
	api, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(api)
	w.url = srv.URL
	w.close = sync.OnceFunc(func() {
		srv.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d.Drain(ctx)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.close)
	return w
}

// agent registers an agent that offers every tool, and puts it online.
func (w *world) agent(id fleet.AgentID, labels map[string]string) {
	w.t.Helper()
	ctx := w.t.Context()
	_, tok, err := w.enrol.Create(ctx, "system:test", enroll.Spec{Agent: string(id), Labels: labels})
	if err != nil {
		w.t.Fatal(err)
	}
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, _, err = w.db.Enrol(ctx, enroll.Enrolment{TokenID: tok.ID, Key: pub, At: time.Now()}, fleet.AdminEvent{Principal: "system:test", Action: "enroll.use", At: time.Now()}); err != nil {
		w.t.Fatal(err)
	}
	epoch, _, err := w.db.NextEpoch(ctx, fleet.Claim{Agent: id, Generation: 1, Instance: "i"})
	if err != nil {
		w.t.Fatal(err)
	}
	var caps []protocol.Capability
	for _, d := range capability.All() {
		caps = append(caps, protocol.Capability{Name: d.Name, Version: d.Version})
	}
	facts := protocol.Facts{Hostname: "host-of-" + string(id), OS: "linux", OSVersion: "Debian 12", Arch: "amd64", RunAs: "root", AgentVersion: "1"}
	if err := w.db.UpdateFacts(ctx, id, epoch, facts, caps); err != nil {
		w.t.Fatal(err)
	}
	w.hosts.mu.Lock()
	w.hosts.online[id] = true
	w.hosts.mu.Unlock()
}

// pat makes a token.
func (w *world) pat(name string, admin bool, agents fleet.AgentSet, tools fleet.ToolSet) string {
	w.t.Helper()
	token, _, err := w.tokens.CreatePAT(w.t.Context(), authn.System("test"), authn.NewPAT{Name: name, Admin: admin, Grant: fleet.Grant{Agents: agents, Tools: tools}})
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

var everyAgent, everyTool = fleet.AgentSet{All: true}, fleet.ToolSet{All: true}

// answerOf is a response's status, headers and body.
type answerOf struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are given as name, value.
func (w *world) do(method, path, token, body string, headers ...string) answerOf {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = nil, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	given := http.Header{} // a name that's given twice is sent twice
	for i := 0; i < len(headers); i += 2 {
		given.Add(headers[i], headers[i+1])
	}
	maps.Copy(req.Header, given)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	described(w.t, method, req.URL.Path, resp.StatusCode)
	return answerOf{resp.StatusCode, resp.Header, string(b)}
}

// code is the error code in an answer, "" if there's none.
func (a answerOf) code() string {
	var p Problem
	if json.Unmarshal([]byte(a.body), &p) != nil {
		return ""
	}
	return p.Error.Code
}

func decode[T any](t *testing.T, a answerOf) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("HTTP %d: %s: %v", a.status, a.body, err)
	}
	return v
}

// refusals ends the world and counts the refusals in its record, by code: nobody waits for
// their rows, but Close writes what is left.
func (w *world) refusals() map[string]int {
	w.t.Helper()
	w.close()
	db, err := store.Open(w.t.Context(), store.Config{DataDir: w.dir})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	out := map[string]int{}
	rows, _, err := db.Records(w.t.Context(), store.RecordFilter{Kind: store.KindRefusal, Limit: 1000})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range rows {
		var b struct {
			Code  string `json:"code"`
			Count int    `json:"count"`
		}
		if err := json.Unmarshal(r.Body, &b); err != nil {
			w.t.Fatal(err)
		}
		out[b.Code] += max(b.Count, 1)
	}
	return out
}
