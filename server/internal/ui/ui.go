// Package ui serves the page that web holds: hashed assets cached for ever, the entry
// never, under a policy that lets nothing but the page's own files run.
package ui

import (
	"bytes"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/drover-fleet/drover/web"
)

// policy allows the page's own scripts and styles and requests to its own origin; nothing
// inline, nothing from elsewhere, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// indexName is the page's entry; without it the page was not built.
const indexName = "index.html"

// Handler serves the page that this program was built with.
func Handler() http.Handler { return New(web.Dist()) }

// New returns the handler of everything that isn't an API: pages holds index.html, its
// assets under assets/ and a few files beside it. Where there's no index.html, the page was
// not built: then / answers with how to.
func New(pages fs.FS) http.Handler {
	index, err := fs.ReadFile(pages, indexName)
	if err != nil {
		return secure(http.HandlerFunc(unbuilt))
	}
	return secure(&site{files: pages, index: index})
}

type site struct {
	files fs.FS
	index []byte
}

// ServeHTTP answers with a file, with the entry where a browser navigates to a path that
// the page knows by itself, else with 404.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if name == "" || name == indexName {
		s.serveIndex(w, r)
		return
	}
	body, err := fs.ReadFile(s.files, name)
	switch {
	case err == nil && !strings.HasPrefix(name, "."):
		serveFile(w, r, name, body)
	case navigates(r) && path.Ext(name) == "":
		s.serveIndex(w, r)
	default:
		w.Header().Set("Cache-Control", "no-store")
		http.NotFound(w, r)
	}
}

// navigates tells a browser that opens a path from a program that fetches one.
func navigates(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}

func (s *site) serveIndex(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	// The entry names the hashed assets: an old one would ask for files that are gone.
	h.Set("Cache-Control", "no-cache")
	write(w, r, s.index)
}

func serveFile(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType(name))
	h.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, "assets/") {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	write(w, r, body)
}

func write(w http.ResponseWriter, r *http.Request, body []byte) {
	if r.Method == http.MethodHead {
		return
	}
	// An error here is the client's going away; there's nobody left to tell.
	_, _ = bytes.NewReader(body).WriteTo(w)
}

// contentType knows the page's own kinds by itself: what a system's table says of .js
// differs from host to host.
func contentType(name string) string {
	switch ext := path.Ext(name); ext {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".html":
		return "text/html; charset=utf-8"
	default:
		if t := mime.TypeByExtension(ext); t != "" {
			return t
		}
		return "application/octet-stream"
	}
}

// secure sets the headers that every answer of the page has.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}
