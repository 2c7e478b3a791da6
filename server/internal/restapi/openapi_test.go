package restapi

import (
	"bytes"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/openapi.yaml")

func document(t *testing.T) *API {
	t.Helper()
	a, err := New(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestOpenAPIIsCommitted(t *testing.T) {
	got, err := document(t).OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "..", "..", "docs", "openapi.yaml")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/openapi.yaml isn't what the code says; run: go test ./server/internal/restapi -run OpenAPI -update\n%s", cmp.Diff(string(want), string(got)))
	}
}

// Every operation is decided on, registered, and what it needs is what its description
// says.
func TestEveryOperationDeclaresItsNeed(t *testing.T) {
	a := document(t)
	registered := map[string]*huma.Operation{}
	for path, item := range a.huma.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Patch, item.Put, item.Delete} {
			if op != nil {
				registered[op.Method+" "+path] = op
			}
		}
	}
	seen := map[string]bool{}
	for _, op := range operations() {
		if op.need == undecided || op.summary == "" || op.doc == "" || op.tag == "" {
			t.Errorf("%s: need, tag, summary or description is missing", op.id)
		}
		got := registered[op.method+" "+op.path]
		if seen[op.id] || got == nil {
			t.Errorf("%s stands twice, or isn't registered", op.id)
			continue
		}
		// A parameter that the library doesn't know is one that no handler gets.
		for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(op.path, -1) {
			if !slices.ContainsFunc(got.Parameters, func(p *huma.Param) bool { return p.In == "path" && p.Name == name[1] }) {
				t.Errorf("%s: the path parameter %s isn't read", op.id, name[1])
			}
		}
		seen[op.id] = true
	}
	if len(registered) != len(seen) {
		t.Errorf("%d operations are registered, %d are in the table", len(registered), len(seen))
	}
	// What anybody may use is a decision of its own.
	var open []string
	for _, op := range operations() {
		if op.need == public {
			open = append(open, op.id)
		}
	}
	slices.Sort(open)
	if len(open) > 0 {
		t.Errorf("public operations: %v", open)
	}
}

// described fails where docs/openapi.yaml lacks the status of a success.
func described(t *testing.T, method, path string, status int) {
	t.Helper()
	path, ours := strings.CutPrefix(path, Prefix)
	if !ours || status >= 300 {
		return
	}
	for template, item := range document(t).huma.OpenAPI().Paths {
		pattern := "^" + regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllString(template, "[^/]+") + "$"
		op := map[string]*huma.Operation{"GET": item.Get, "POST": item.Post, "PATCH": item.Patch, "PUT": item.Put, "DELETE": item.Delete}[method]
		if op == nil || !regexp.MustCompile(pattern).MatchString(path) {
			continue
		}
		if op.Responses[strconv.Itoa(status)] == nil {
			t.Errorf("%s %s answered %d, which docs/openapi.yaml doesn't describe", method, path, status)
		}
	}
}
