package ui

import (
	_ "embed"
	"net/http"
)

//go:embed unbuilt.html
var unbuiltPage []byte

// unbuilt says how to build the page and how to do without it.
func unbuilt(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" || (r.Method != http.MethodGet && r.Method != http.MethodHead) {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	write(w, r, unbuiltPage)
}
