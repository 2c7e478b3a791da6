package ui_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/drover-fleet/drover/server/internal/ui"
)

func built() fstest.MapFS {
	return fstest.MapFS{
		".gitkeep":          {},
		"index.html":        {Data: []byte("<!doctype html>entry")},
		"favicon.svg":       {Data: []byte("<svg/>")},
		"assets/app-123.js": {Data: []byte("run()")},
	}
}

func ask(t *testing.T, h http.Handler, method, path, accept string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBuiltPage(t *testing.T) {
	h := ui.New(built())
	const html, all = "text/html,application/xhtml+xml", "*/*"
	for _, tc := range []struct {
		method, path, accept string
		status               int
		kind, cache, body    string
	}{
		{"GET", "/", html, 200, "text/html; charset=utf-8", "no-cache", "<!doctype html>entry"},
		{"HEAD", "/", html, 200, "text/html; charset=utf-8", "no-cache", ""},
		{"GET", "/index.html", all, 200, "text/html; charset=utf-8", "no-cache", "<!doctype html>entry"},
		{"GET", "/agents/web-01", html, 200, "text/html; charset=utf-8", "no-cache", "<!doctype html>entry"},
		{"GET", "/agents/web-01", all, 404, "text/plain; charset=utf-8", "no-store", "404 page not found\n"},
		{"GET", "/favicon.svg", all, 200, "image/svg+xml", "no-cache", "<svg/>"},
		{"GET", "/assets/app-123.js", all, 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable", "run()"},
		// An asset that's gone must not turn into the entry: a browser would run HTML as a script.
		{"GET", "/assets/app-122.js", html, 404, "text/plain; charset=utf-8", "no-store", "404 page not found\n"},
		{"GET", "/assets", all, 404, "text/plain; charset=utf-8", "no-store", "404 page not found\n"},
		{"GET", "/.gitkeep", all, 404, "text/plain; charset=utf-8", "no-store", "404 page not found\n"},
		{"GET", "/../../etc/passwd", all, 404, "text/plain; charset=utf-8", "no-store", "404 page not found\n"},
		{"POST", "/", html, 405, "text/plain; charset=utf-8", "", "method not allowed\n"},
	} {
		t.Run(tc.method+tc.path+" "+tc.accept, func(t *testing.T) {
			res := ask(t, h, tc.method, tc.path, tc.accept)
			got := []any{res.StatusCode, res.Header.Get("Content-Type"), res.Header.Get("Cache-Control"), body(t, res)}
			want := []any{tc.status, tc.kind, tc.cache, tc.body}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("got %q, want %q", got[i], want[i])
				}
			}
			checkHeaders(t, res)
		})
	}
}

func TestUnbuiltPageTellsWhatToDo(t *testing.T) {
	h := ui.New(fstest.MapFS{".gitkeep": {}})
	res := ask(t, h, "GET", "/", "text/html")
	text := body(t, res)
	for _, want := range []string{"make build", "claude mcp add --transport http", "Node.js 20.19"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
	checkHeaders(t, res)
	if res := ask(t, h, "GET", "/other", "text/html"); res.StatusCode != http.StatusNotFound {
		t.Errorf("/other: status %d", res.StatusCode)
	}
}

// TestEmbeddedPage looks at what this build really holds, built or not.
func TestEmbeddedPage(t *testing.T) {
	h := ui.Handler()
	text := body(t, ask(t, h, "GET", "/", "text/html"))
	for _, bad := range []string{"<script>", "onload=", "style=", "://fonts", "http-equiv"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page's entry has %q, which its policy forbids", bad)
		}
	}
	if !strings.Contains(text, "Drover") {
		t.Error("the page doesn't name Drover")
	}
}

func checkHeaders(t *testing.T, res *http.Response) {
	t.Helper()
	csp := res.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("Content-Security-Policy %q lacks %s", csp, want)
		}
	}
	for _, bad := range []string{"unsafe", "*", "http:", "https:", "data:"} {
		if strings.Contains(csp, bad) {
			t.Errorf("Content-Security-Policy %q has %s", csp, bad)
		}
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
