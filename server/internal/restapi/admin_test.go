package restapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Managing Drover needs --admin, and nothing is told to who isn't known.
const needsAdmin = admin

func TestWhoMayUseEachOperation(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	user, admin := w.pat("u", false, everyAgent, everyTool), w.pat("a", true, fleet.AgentSet{IDs: []fleet.AgentID{"none"}}, fleet.ToolSet{Names: []string{"diag"}})
	bodies := map[string]string{"set-agent": `{"description":"d"}`, "create-pat": `{}`, "create-enrolment": `{}`, "create-call": `{}`}
	for _, op := range operations() {
		path := Prefix + strings.NewReplacer("{agent_id}", "nope", "{call_id}", "nope", "{pat_id}", "nope", "{enrolment_id}", "nope").Replace(op.path)
		body := bodies[op.id]
		for who, token := range map[string]string{"nobody": "", "stranger": "drv_pat_AAAA", "no token": "x"} {
			a := w.do(op.method, path, token, body)
			if a.status != http.StatusUnauthorized || a.code() != "unauthenticated" || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s by %s: HTTP %d %s", op.id, who, a.status, a.body)
			}
		}
		a := w.do(op.method, path, user, body)
		if (a.status == http.StatusForbidden && a.code() == "denied") != (op.need == needsAdmin) {
			t.Errorf("%s by a user: HTTP %d %s", op.id, a.status, a.body)
		}
		if a := w.do(op.method, path, admin, body); a.status == http.StatusForbidden || a.status >= 500 {
			t.Errorf("%s by an administrator: HTTP %d %s", op.id, a.status, a.body)
		}
	}
}

func TestAgentsListAndSet(t *testing.T) {
	w := newWorld(t, nil)
	for _, id := range []fleet.AgentID{"a-1", "a-2", "b-1", "c-1"} {
		w.agent(id, map[string]string{"group": string(id[:1])})
	}
	w.hosts.online["b-1"] = false
	admin := w.pat("a", true, fleet.AgentSet{IDs: []fleet.AgentID{"none"}}, fleet.ToolSet{Names: []string{"diag"}})
	user := w.pat("u", false, fleet.AgentSet{Selector: map[string]string{"group": "a"}}, everyTool)
	ids := func(token, query string) (out []string, next string, total int) {
		l := decode[AgentList](t, w.do("GET", "/api/v1/agents"+query, token, ""))
		for _, a := range l.Agents {
			out = append(out, a.AgentID+" "+a.State)
		}
		return out, l.NextCursor, l.Total
	}
	for _, c := range []struct{ token, query, want, next string }{
		{admin, "", "a-1 online,a-2 online,b-1 offline,c-1 online", ""},
		{admin, "?limit=2", "a-1 online,a-2 online", "a-2"},
		{admin, "?limit=2&cursor=a-2", "b-1 offline,c-1 online", ""},
		{admin, "?state=offline", "b-1 offline", ""},
		{admin, "?labels=group%3Dc", "c-1 online", ""},
		{admin, "?query=HOST-OF-b", "b-1 offline", ""},
		{admin, "?query=group%3Dc", "c-1 online", ""},
		{user, "", "a-1 online,a-2 online", ""},
		{user, "?query=b-1", "", ""},
	} {
		got, next, _ := ids(c.token, c.query)
		if strings.Join(got, ",") != c.want || next != c.next {
			t.Errorf("%s: %v, next %q", c.query, got, next)
		}
	}
	if _, _, total := ids(admin, "?limit=1"); total != 4 {
		t.Errorf("total %d", total)
	}
	a := w.do("PATCH", "/api/v1/agents/a-1", admin, `{"labels":{"env":"prod"},"description":"shop"}`)
	if g := decode[AgentInfo](t, a); a.status != 200 || g.Description != "shop" || !cmp.Equal(g.Labels, map[string]string{"env": "prod"}) {
		t.Errorf("set: HTTP %d %s", a.status, a.body)
	}
	if got, _, _ := ids(user, ""); strings.Join(got, ",") != "a-2 online" {
		t.Errorf("the label is still a right: %v", got)
	}
	if g := decode[AgentInfo](t, w.do("PATCH", "/api/v1/agents/a-1", admin, `{"labels":{}}`)); len(g.Labels) != 0 || g.Description != "shop" {
		t.Errorf("no labels: %+v", g)
	}
	if g := decode[AgentInfo](t, w.do("PATCH", "/api/v1/agents/a-1", admin, `{"description":""}`)); g.Description != "" {
		t.Errorf("no description: %+v", g)
	}
	for _, body := range []string{`{}`, `{"labels":null}`, `{"labels":{"BAD KEY":"x"}}`, `{"Labels":{}}`, `{"labels":{"k":1}}`, `{"description":"` + strings.Repeat("x", 1001) + `"}`} {
		if a := w.do("PATCH", "/api/v1/agents/a-1", admin, body); a.status != 400 || a.code() != "bad_args" {
			t.Errorf("%.40s: HTTP %d %s", body, a.status, a.body)
		}
	}
}

func TestRefusedQueriesRepeatNoValue(t *testing.T) {
	w := newWorld(t, nil)
	pat := w.pat("u", false, everyAgent, everyTool)
	for _, q := range []string{"?limit=s3cret", "?limit=0", "?limit=201", "?state=s3cret", "?nope=s3cret", "?labels=s3cret", "?Limit=1"} {
		a := w.do("GET", "/api/v1/agents"+q, pat, "")
		if a.status != 400 || a.code() != "bad_args" || strings.Contains(a.body, "s3cret") || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: HTTP %d %s %s", q, a.status, a.header.Get("Content-Type"), a.body)
		}
	}
	if a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"x","tool":"shell_exec","s3cret`+"\x01"+`":1}`); strings.Contains(a.body, "\x01") || a.code() != "bad_args" {
		t.Errorf("%s", a.body)
	}
	if a := w.do("GET", "/api/v1/nope", pat, ""); a.status != 404 || a.code() != "not_found" {
		t.Errorf("unknown path: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("PUT", "/api/v1/agents", pat, `{}`); a.status != 405 || a.code() != "bad_args" {
		t.Errorf("method: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("POST", "/api/v1/calls", pat, `{}`, "Content-Type", "text/plain"); a.status != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("POST", "/api/v1/calls", pat, `{"agent_id":"x","tool":"fs_write","args":{"content":"`+strings.Repeat("x", maxCallBody)+`"}}`); a.status != http.StatusRequestEntityTooLarge || a.code() != "too_large" {
		t.Errorf("large: HTTP %d %.200s", a.status, a.body)
	}
}

func TestPATs(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.EnrollCommand = "drover enroll create --data /srv" })
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	a := w.do("POST", "/api/v1/pats", admin, `{"name":"ci","grant":{"agents":{"ids":["web-01"]},"tools":{"names":["fs"]}},"ttl_seconds":60}`)
	p := decode[NewPAT](t, a)
	if a.status != http.StatusCreated || !strings.HasPrefix(p.Token, "drv_pat_") || p.State != "active" || p.Admin {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	me := decode[Whoami](t, w.do("GET", "/api/v1/whoami", p.Token, ""))
	if me.Principal != "pat:"+p.ID || me.Name != "ci" || me.Admin || me.ExpiresAt.IsZero() || me.Enroll != "" {
		t.Errorf("whoami: %+v", me)
	}
	if me := decode[Whoami](t, w.do("GET", "/api/v1/whoami", admin, "")); me.Enroll != "drover enroll create --data /srv" {
		t.Errorf("an administrator's whoami: %+v", me)
	}
	tools := decode[ToolList](t, w.do("GET", "/api/v1/tools", p.Token, ""))
	for _, tool := range tools.Tools {
		if !strings.HasPrefix(tool.Name, "fs_") || !strings.Contains(string(tool.InputSchema), `"path"`) {
			t.Errorf("tool %+v", tool)
		}
	}
	list := w.do("GET", "/api/v1/pats", admin, "")
	if strings.Contains(list.body, p.Token) || len(decode[PATList](t, list).PATs) != 2 {
		t.Errorf("list: %s", list.body)
	}
	for _, id := range []string{p.ID, p.ID} { // twice is no error
		if a := w.do("DELETE", "/api/v1/pats/"+id, admin, ""); a.status != http.StatusNoContent {
			t.Errorf("revoke: HTTP %d %s", a.status, a.body)
		}
	}
	if a := w.do("GET", "/api/v1/whoami", p.Token, ""); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked token: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("DELETE", "/api/v1/pats/nope", admin, ""); a.code() != "not_found" {
		t.Errorf("unknown: HTTP %d %s", a.status, a.body)
	}
	for _, body := range []string{
		`{"name":"x","grant":{"agents":{},"tools":{"all":true}}}`, `{"name":"x","grant":{"agents":{"all":true},"tools":{}}}`, `{"name":"x"}`,
		`{"name":"x","grant":{"agents":{"all":true,"ids":["web-01"]},"tools":{"all":true}}}`, `{"name":"x","grant":{"agents":{"selector":{}},"tools":{"all":true}}}`,
		`{"name":"","grant":{"agents":{"all":true},"tools":{"all":true}}}`, `{"name":"x","grant":{"agents":{"all":true},"tools":{"names":["nope"]}}}`,
		`{"name":"x","grant":{"agents":{"all":true},"tools":{"all":true}},"ttl_seconds":1,"never_expires":true}`,
		`{"name":"x","grant":{"agents":{"all":true},"tools":{"all":true}},"ttl_seconds":-1}`,
	} {
		if a := w.do("POST", "/api/v1/pats", admin, body); a.status != 400 || a.code() != "bad_args" {
			t.Errorf("%s: HTTP %d %s", body, a.status, a.body)
		}
	}
}

func TestEnrolmentsAndRemoval(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	a := w.do("POST", "/api/v1/enrolments", admin, `{"agent_id":"web-02","labels":{"env":"lab"},"ttl_seconds":60}`)
	e := decode[NewEnrolment](t, a)
	if a.status != http.StatusCreated || !strings.HasPrefix(e.Token, "drv_enr_") || e.State != "open" || e.AgentID != "web-02" {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	if a := w.do("GET", "/api/v1/enrolments", admin, ""); strings.Contains(a.body, e.Token) || len(decode[EnrolmentList](t, a).Enrolments) != 2 {
		t.Errorf("list: %s", a.body)
	}
	if a := w.do("DELETE", "/api/v1/enrolments/"+e.ID, admin, ""); a.status != http.StatusNoContent {
		t.Errorf("revoke: HTTP %d %s", a.status, a.body)
	}
	for body, code := range map[string]string{
		`{"agent_id":"web-01"}`: "conflict", `{"agent_id":"Web"}`: "bad_args", `{"agent_id":"new","replace":true}`: "not_found",
		`{"agent_id":"new","labels":{"a,b":"c"}}`: "bad_args", `{"agent_id":"new","ttl_seconds":99999999999}`: "bad_args",
	} {
		if a := w.do("POST", "/api/v1/enrolments", admin, body); a.code() != code {
			t.Errorf("%s: HTTP %d %s", body, a.status, a.body)
		}
	}
	if a := w.do("DELETE", "/api/v1/agents/web-01", admin, ""); a.status != http.StatusNoContent {
		t.Fatalf("remove: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("POST", "/api/v1/enrolments", admin, `{"agent_id":"web-01"}`); a.code() != "conflict" {
		t.Errorf("a removed id was given out again: HTTP %d %s", a.status, a.body)
	}
	audit := decode[AuditList](t, w.do("GET", "/api/v1/audit?kind=admin&limit=200", admin, ""))
	var actions []string
	for _, r := range audit.Rows {
		actions = append(actions, string(r.Body))
	}
	all := strings.Join(actions, "\n")
	for _, want := range []string{"agent.remove", "enroll.create", "enroll.revoke", "pat.create"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in the record:\n%s", want, all)
		}
	}
	page := decode[AuditList](t, w.do("GET", "/api/v1/audit?limit=1", admin, ""))
	next := decode[AuditList](t, w.do("GET", "/api/v1/audit?limit=1&cursor="+page.NextCursor, admin, ""))
	if len(page.Rows) != 1 || len(next.Rows) != 1 || page.Rows[0].ID <= next.Rows[0].ID {
		t.Errorf("pages: %+v %+v", page, next)
	}
}

func TestHealthAndMetrics(t *testing.T) {
	var api *API
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("numbers")) })
	var store failing
	w := newWorld(t, func(c *Config) {
		c.Metrics, c.Secure = metrics, true
		store.Store = c.Store
		c.Store = &store
		a, err := New(*c)
		if err != nil {
			t.Fatal(err)
		}
		api = a
	})
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200} {
		if a := w.do("GET", path, "", ""); a.status != want {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
	store.err = errors.New("down")
	if a := w.do("GET", "/readyz", "", ""); a.status != 503 || strings.Contains(a.body, "down") {
		t.Errorf("readyz: HTTP %d %s", a.status, a.body)
	}
	admin, user := w.pat("a", true, everyAgent, everyTool), w.pat("u", false, everyAgent, everyTool)
	for _, c := range []struct {
		name, peer, host, token, forwarded string
		want                               int
	}{
		{"loopback", "127.0.0.1:1", "127.0.0.1:7400", "", "", 200},
		{"loopback 6", "[::1]:1", "[::1]:7400", "", "", 200},
		{"mapped", "[::ffff:127.0.0.1]:1", "localhost:7400", "", "", 200},
		{"forwarded", "127.0.0.1:1", "127.0.0.1:7400", "", "203.0.113.7", 401},
		{"forwarded without a word", "127.0.0.1:1", "drover.example.org", "", "", 401},
		{"forwarded to an address", "127.0.0.1:1", "203.0.113.9", "", "", 401},
		{"elsewhere", "203.0.113.7:1", "127.0.0.1:7400", "", "", 401},
		{"a user", "203.0.113.7:1", "drover.example.org", user, "", 403},
		{"an administrator", "203.0.113.7:1", "drover.example.org", admin, "", 200},
		{"an administrator through a proxy", "127.0.0.1:1", "drover.example.org", admin, "203.0.113.7", 200},
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = c.host
		r.RemoteAddr = c.peer
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		rec := httptest.NewRecorder()
		api.ServeHTTP(rec, r)
		if rec.Code != c.want {
			t.Errorf("%s: HTTP %d, want %d", c.name, rec.Code, c.want)
		}
	}
	api.Draining()
	rec := httptest.NewRecorder()
	api.ServeHTTP(rec, httptest.NewRequest("GET", "/readyz", nil))
	if rec.Code != 503 {
		t.Errorf("draining: HTTP %d", rec.Code)
	}
}

// failing is a store whose database can be taken away.
type failing struct {
	Store
	err error
}

func (f *failing) Ping(ctx context.Context) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Ping(ctx)
}
