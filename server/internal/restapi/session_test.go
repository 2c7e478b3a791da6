package restapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/server/internal/authn"
)

// signIn opens a session and returns its cookie as a header's value.
func signIn(t *testing.T, w *world, pat string) string {
	t.Helper()
	a := w.do("POST", "/api/v1/session", "", `{"pat":"`+pat+`"}`)
	if a.status != http.StatusNoContent {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	set := a.header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/", "Expires="} {
		if !strings.Contains(set, want) {
			t.Errorf("no %s in %s", want, set)
		}
	}
	if strings.Contains(set, pat) {
		t.Error("the token is in the cookie")
	}
	cookie, _, _ := strings.Cut(set, ";")
	return cookie
}

func TestSession(t *testing.T) {
	w := newWorld(t, nil)
	pat := w.pat("p", true, everyAgent, everyTool)
	cookie := signIn(t, w, pat)
	const change = `{"agent_id":"new"}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		want                     int
	}{
		{"its own page", "GET", "/api/v1/whoami", "", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"typed", "GET", "/api/v1/whoami", "", []string{"Sec-Fetch-Site", "none"}, 200},
		{"no browser", "GET", "/api/v1/whoami", "", nil, 200},
		{"another site", "GET", "/api/v1/whoami", "", []string{"Sec-Fetch-Site", "cross-site"}, 401},
		{"a sister", "GET", "/api/v1/whoami", "", []string{"Sec-Fetch-Site", "same-site"}, 401},
		{"an old browser's other site", "GET", "/api/v1/whoami", "", []string{"Origin", "https://evil.example"}, 401},
		{"change by its own page", "POST", "/api/v1/enrolments", change, []string{"Sec-Fetch-Site", "same-origin", "Origin", w.url}, 201},
		{"change by another", "POST", "/api/v1/enrolments", `{"agent_id":"new2"}`, []string{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, 401},
		{"change by another, old", "POST", "/api/v1/enrolments", `{"agent_id":"new3"}`, []string{"Origin", "null"}, 401},
	} {
		if a := w.do(c.method, c.path, "", c.body, append(c.headers, "Cookie", cookie)...); a.status != c.want {
			t.Errorf("%s: HTTP %d %s, want %d", c.name, a.status, a.body, c.want)
		}
	}
	// A header that is wrong isn't helped by a cookie.
	if a := w.do("GET", "/api/v1/whoami", "drv_pat_wrong", "", "Cookie", cookie); a.status != 401 {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
	if a := w.do("DELETE", "/api/v1/session", "", "", "Cookie", cookie); a.status != 204 || !strings.Contains(a.header.Get("Set-Cookie"), "1970") {
		t.Errorf("HTTP %d %v", a.status, a.header)
	}
	if a := w.do("GET", "/api/v1/whoami", "", "", "Cookie", cookie); a.status != 401 {
		t.Errorf("after the end: HTTP %d %s", a.status, a.body)
	}
}

func TestSessionEndsWithItsToken(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Secure = true })
	pat := w.pat("p", false, everyAgent, everyTool)
	cookie := signIn(t, w, pat)
	who, err := w.tokens.Token(pat)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.tokens.RevokePAT(t.Context(), authn.System("test"), strings.TrimPrefix(who.ID, "pat:")); err != nil {
		t.Fatal(err)
	}
	if a := w.do("GET", "/api/v1/whoami", "", "", "Cookie", cookie); a.status != 401 {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
}

func TestSessionRefusals(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Secure = true })
	pat := w.pat("p", false, everyAgent, everyTool)
	for _, c := range []struct {
		name, body string
		headers    []string
		want       int
	}{
		{"wrong", `{"pat":"drv_pat_wrong"}`, nil, 401},
		{"null", `{"pat":null}`, nil, 400},
		{"twice", `{"pat":"x","pat":"` + pat + `"}`, nil, 400},
		{"form", `pat=` + pat, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"another site", `{"pat":"` + pat + `"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"large", `{"pat":"` + strings.Repeat("x", 5000) + `"}`, nil, 413},
	} {
		a := w.do("POST", "/api/v1/session", "", c.body, c.headers...)
		if a.status != c.want || a.header.Get("Set-Cookie") != "" || strings.Contains(a.body, pat) {
			t.Errorf("%s: HTTP %d %s", c.name, a.status, a.body)
		}
	}
	if a := w.do("POST", "/api/v1/session", "", `{"pat":"`+pat+`"}`); !strings.Contains(a.header.Get("Set-Cookie"), "Secure") {
		t.Errorf("behind https the cookie isn't Secure: %v", a.header)
	}
}

func TestASessionThatIsNone(t *testing.T) {
	w, other := newWorld(t, nil), newWorld(t, nil)
	cookie := signIn(t, w, w.pat("p", true, everyAgent, everyTool))
	name, value, _ := strings.Cut(cookie, "=")
	for what, c := range map[string]string{"cut": cookie[:len(cookie)-1], "empty": name + "=", "changed": name + "=A" + value, "of the time before": name + "=MFRGGZDFMZTWQ2LKNNWG23TPOB"} {
		if a := w.do("GET", "/api/v1/whoami", "", "", "Cookie", c); a.status != 401 {
			t.Errorf("%s: HTTP %d %s", what, a.status, a.body)
		}
	}
	if a := other.do("GET", "/api/v1/whoami", "", "", "Cookie", cookie); a.status != 401 {
		t.Errorf("a server with another key: HTTP %d %s", a.status, a.body)
	}
	if a := w.do("GET", "/api/v1/whoami", "", "", "Cookie", cookie); a.status != 200 {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
	// Another site's page can't sign anybody out.
	w.do("DELETE", "/api/v1/session", "", "", "Cookie", cookie, "Sec-Fetch-Site", "cross-site")
	if a := w.do("GET", "/api/v1/whoami", "", "", "Cookie", cookie); a.status != 200 {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
}
