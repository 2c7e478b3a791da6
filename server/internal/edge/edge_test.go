package edge

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func serve(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func fine(t *testing.T) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(b)
	})
}

func TestHosts(t *testing.T) {
	h := Hosts("Drover.Example.COM")(fine(t))
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:7400": 200, "[::1]:7400": 200, "[::1]": 200, "10.1.2.3": 200, "localhost:1": 200, "LOCALHOST": 200,
		"drover.example.com": 200, "drover.example.com:8443": 200, "DROVER.example.com.": 200,
		"evil.com": 403, "drover.example.com.evil.com": 403, "localhost.evil.com": 403, "127.0.0.1.nip.io": 403, "": 403, "evil.com:7400": 403,
		"drover.example.com@evil.com": 403, "[::1]evil": 403,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := serve(h, r)
		if w.Code != want || want == 403 && !strings.Contains(w.Body.String(), "--public-url") {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
	}
}

func TestCrossOrigin(t *testing.T) {
	mw, err := CrossOrigin(func(*http.Request, *fleet.Error) {}, "https://drover.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, origin, site string
		want                 int
	}{
		{"POST", "", "", 200},
		{"POST", "http://127.0.0.1:7400", "same-origin", 200},
		{"POST", "https://drover.example.com", "same-origin", 200},
		{"POST", "https://drover.example.com", "cross-site", 200},
		{"POST", "https://evil.example", "cross-site", 403},
		{"POST", "https://evil.example", "", 403},
		{"POST", "null", "", 403},
		{"DELETE", "https://evil.example", "same-site", 403},
		{"GET", "https://evil.example", "cross-site", 200},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1:7400/", nil)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if w := serve(mw(fine(t)), r); w.Code != c.want {
			t.Errorf("%+v: %d %s", c, w.Code, w.Body)
		}
	}
	if _, err := CrossOrigin(func(*http.Request, *fleet.Error) {}, "drover.example.com"); err == nil {
		t.Error("an origin without scheme passed")
	}
}

func TestPublicURL(t *testing.T) {
	for in, want := range map[string]string{
		"https://Drover.example.com": "https://drover.example.com", "http://h:7400/": "http://h:7400", "ftp://h": "", "h:1": "", "": "", "https://": "",
	} {
		got, err := Origin(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("Origin(%q) = %q, %v", in, got, err)
		}
	}
}

func TestReadBody(t *testing.T) {
	alone := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := Read(w, r, 64)
		if err != nil {
			WriteError(w, fleet.AsError(err))
		}
		_, _ = w.Write(b)
	})
	for _, c := range []struct {
		name, body string
		status     int
		want       string // in the answer
	}{
		{"as it came", `{ "b":1.50, "a":[null] }`, 200, `{ "b":1.50, "a":[null] }`},
		{"none", ``, 200, ``},
		{"the limit", `"` + strings.Repeat("x", 62) + `"`, 200, "xxx"},
		{"over it", `"` + strings.Repeat("x", 63) + `"`, 413, `"code":"too_large"`},
	} {
		for _, chunked := range []bool{false, true} {
			r := httptest.NewRequest("POST", "/", strings.NewReader(c.body))
			if chunked {
				r.ContentLength = -1
			}
			if w := serve(alone, r); w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				t.Errorf("%s, chunked %v: %d %s", c.name, chunked, w.Code, w.Body)
			}
		}
	}
}

func TestAuthenticate(t *testing.T) {
	h := Authenticate(NewServing(func(string) bool { return true }), func(r *http.Request) (fleet.Principal, error) {
		switch Bearer(r) {
		case "good":
			return fleet.Principal{ID: "pat:1", Name: "n"}, nil
		case "down":
			return fleet.Principal{}, fleet.Wrap(protocol.CodeUnavailable, errors.New("secret"), "the store is away")
		case "":
			return fleet.Principal{}, nil
		default:
			return fleet.Principal{}, fleet.Errorf(protocol.CodeUnauthenticated, "no")
		}
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := Principal(r.Context())
		if !ok || p.ID != "pat:1" {
			t.Errorf("principal %+v", p)
		}
	}))
	for _, c := range []struct {
		header    []string
		status    int
		challenge string
	}{
		{[]string{"Bearer good"}, 200, ""},
		{[]string{"bearer  good "}, 200, ""},
		{nil, 401, `Bearer realm="drover"`},
		{[]string{"Bearer bad"}, 401, `error="invalid_token"`},
		{[]string{"Basic good"}, 401, `error="invalid_token"`},
		{[]string{"Bearer good", "Bearer bad"}, 401, `error="invalid_token"`},
		{[]string{"Bearer down"}, 503, ""},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Authorization"] = c.header
		w := serve(h, r)
		got := w.Header().Get("WWW-Authenticate")
		if w.Code != c.status || !strings.Contains(got, c.challenge) || (got == "") != (c.challenge == "") || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%q: %d %q %s", c.header, w.Code, got, w.Body)
		}
	}
	if _, ok := Principal(httptest.NewRequest("GET", "/", nil).Context()); ok {
		t.Error("a principal from nowhere")
	}
}

func TestRecoverAndRequestID(t *testing.T) {
	var told []string
	tell := func(p *fault.Panic, id string, _ *http.Request) {
		if !strings.Contains(p.Stack, "edge_test.go") {
			t.Errorf("the stack: %s", p.Stack)
		}
		told = append(told, id)
	}
	h := RequestID(Recover(tell)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("x\n{\"level\":\"INFO\"}") })))
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set(RequestIDHeader, "mine")
	w := serve(h, r)
	id := w.Header().Get(RequestIDHeader)
	if w.Code != 500 || id == "" || id == "mine" || !strings.Contains(w.Body.String(), id) || strings.Contains(w.Body.String(), "level") {
		t.Errorf("%d %q %s", w.Code, id, w.Body)
	}
	if len(told) != 1 || told[0] != id {
		t.Errorf("told: %q", told)
	}
}

func TestJSONBody(t *testing.T) {
	for ct, want := range map[string]int{
		"application/json": 200, "application/json; charset=UTF-8": 200, "APPLICATION/JSON": 200, "Application/Json;Charset=utf-8": 200, "text/plain": 415, "": 415, "application/json; charset=utf-16": 415,
		"application/x-www-form-urlencoded": 415, "multipart/form-data; boundary=x": 415, "application/jsonx": 415,
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", ct)
		if w := serve(JSONBody(fine(t)), r); w.Code != want {
			t.Errorf("%q: %d", ct, w.Code)
		}
		if got := r.Header.Get("Content-Type"); want == 200 && got != "application/json" {
			t.Errorf("%q goes on as %q", ct, got)
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, c := range protocol.Codes() {
		if s := Status(c); s < 400 || s == 500 && c != protocol.CodeInternal {
			t.Errorf("%s: %d", c, s)
		}
	}
}
