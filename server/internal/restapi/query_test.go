package restapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Of every operation that there is: what is said twice in a query, what is unknown, empty or
// malformed is refused, and nothing is taken for it.
func TestQueriesAreStrict(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	looked := 0
	for path, item := range document(t).huma.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Patch, item.Put, item.Delete} {
			if op == nil {
				continue
			}
			at := Prefix + strings.NewReplacer("{agent_id}", "web-01", "{call_id}", "c", "{pat_id}", "p", "{enrolment_id}", "e").Replace(path)
			queries := map[string]string{"unknown": "no_such=1", "in another case": "Limit=1", "malformed": "%zz", "malformed value": "limit=%z", "semicolon": "limit=1;limit=2"}
			for _, name := range named(op) {
				queries[name+" twice"] = name + "=1&" + name + "=2"
				queries[name+" empty"] = name + "="
				queries[name+" without a value"] = name
				queries[name+" and what is unknown"] = name + "=1&x"
			}
			body := ""
			if op.RequestBody != nil {
				body = `{}`
			}
			for what, q := range queries {
				if a := w.do(op.Method, at+"?"+q, admin, body); a.status != http.StatusBadRequest || a.code() != "bad_args" || !strings.Contains(a.body, "query") {
					t.Errorf("%s, %s: HTTP %d %s", op.OperationID, what, a.status, a.body)
				}
				looked++
			}
		}
	}
	if looked < 150 {
		t.Errorf("only %d queries were looked at", looked)
	}
	// Whoever has no right isn't told what is known here.
	if a := w.do("GET", Prefix+"/audit?no_such=1", w.pat("p", false, everyAgent, everyTool), ""); a.status != http.StatusForbidden {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
}

// A cursor is one that a list of this kind gave. Any other is refused: it would begin the list
// again, which a reader of all pages does for ever, or end it.
func TestCursorsOfNoList(t *testing.T) {
	w := newWorld(t, nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	for i := range 4 {
		w.agent(fleet.AgentID(fmt.Sprintf("web-%02d", i)), nil)
		if a := w.do("POST", Prefix+"/calls", admin, `{"agent_id":"web-00","tool":"shell_exec","args":{"command":"id"}}`); a.status != http.StatusOK {
			t.Fatalf("HTTP %d %s", a.status, a.body)
		}
	}
	next := map[string]string{}
	for _, list := range []string{"/calls", "/audit", "/agents"} {
		page := decode[struct {
			Next string `json:"next_cursor"`
		}](t, w.do("GET", Prefix+list+"?limit=2", admin, ""))
		a := w.do("GET", Prefix+list+"?limit=2&cursor="+page.Next, admin, "")
		if again := w.do("GET", Prefix+list+"?limit=2", admin, ""); page.Next == "" || a.status != http.StatusOK || a.body == again.body {
			t.Fatalf("%s: the page after %q: HTTP %d %s", list, page.Next, a.status, a.body)
		}
		next[list] = page.Next
	}
	for list, mine := range next {
		bad := []string{"0", "2", "-", "x_y", "next", "%20" + mine, mine + "%20", mine + "0", strings.ToUpper(mine), mine + mine, strings.Repeat("a", 300), "01929292-0000-4000-8000-000000000001"}
		if list == "/agents" {
			bad = []string{"-", "x_y", "%20" + mine, mine + "-", strings.ToUpper(mine), strings.Repeat("a", 64), next["/calls"], next["/audit"]}
		} else {
			bad = append(bad, next["/agents"], mine[:35], mine[:8], strings.ReplaceAll(mine, "-", ""))
		}
		for _, c := range bad {
			if a := w.do("GET", Prefix+list+"?cursor="+c, admin, ""); a.status != http.StatusBadRequest || a.code() != "bad_args" || !strings.Contains(a.body, "cursor") {
				t.Errorf("%s?cursor=%s: HTTP %d %s", list, c, a.status, a.body)
			}
		}
	}
	// An agent may be called what a call could be called, and then it's an agent's cursor.
	odd := next["/calls"]
	w.agent(fleet.AgentID(odd), nil)
	if a := w.do("GET", Prefix+"/agents?cursor="+odd, admin, ""); a.status != http.StatusOK || len(decode[AgentList](t, a).Agents) != 4 {
		t.Errorf("an agent's id: HTTP %d %s", a.status, a.body)
	}
}

// What would have been a call is recorded where it's turned away, also for its media type, and so
// is who manages Drover without the right to; with the agent that was named.
func TestWhichRefusalsAreRecorded(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin, pat := w.pat("a", true, everyAgent, everyTool), w.pat("p", false, everyAgent, everyTool)
	const call = `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}}`
	for _, c := range []struct {
		method, path, token, body, media string
		status                           int
	}{
		{"POST", "/calls", pat, call, "text/plain", 415},
		{"POST", "/calls", pat, call, "", 415},
		{"POST", "/calls", pat, `{`, "application/json", 400},
		{"POST", "/calls?x=1", pat, call, "application/json", 400},
		{"POST", "/calls", "", call, "text/plain", 401},
		{"DELETE", "/agents/web-01", pat, "", "", 403},
		{"POST", "/agents/web-01/purge", pat, "", "", 403},
		{"GET", "/audit", pat, "", "", 403},
		{"POST", "/pats", pat, `{}`, "application/json", 403},
		// Not these.
		{"GET", "/calls/x", pat, "", "", 404},
		{"GET", "/calls?x=1", pat, "", "", 400},
		{"POST", "/pats", admin, `{}`, "text/plain", 415},
		{"POST", "/pats", admin, `{}`, "application/json", 400},
		{"GET", "/audit", "", "", "", 401},
	} {
		var headers []string
		if c.body != "" {
			headers = []string{"Content-Type", c.media}
		}
		if a := w.do(c.method, Prefix+c.path, c.token, c.body, headers...); a.status != c.status {
			t.Errorf("%s %s: HTTP %d %s, want %d", c.method, c.path, a.status, a.body, c.status)
		}
	}
	if n := w.hosts.executed(); n != 0 {
		t.Errorf("%d calls ran", n)
	}
	if diff := cmp.Diff(map[string]int{"bad_args": 4, "unauthenticated": 1, "denied": 4}, w.refusals()); diff != "" {
		t.Error(diff)
	}
}
