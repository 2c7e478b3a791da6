package arch

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestNothingIsLeftForLater: a plan is an issue; the tree holds what works.
func TestNothingIsLeftForLater(t *testing.T) {
	marks := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)
	for _, p := range files(t, ".go", ".ts", ".tsx", ".md", ".sql", ".yaml", ".yml", ".sh", ".css", "Makefile", "Dockerfile") {
		for i, line := range strings.Split(read(t, p), "\n") {
			if m := marks.FindString(line); m != "" {
				t.Errorf("%s:%d: %s", p, i+1, m)
			}
		}
	}
}

// TestNoAddressOfARegistry: lock files and scripts leave it to the machine where packages
// come from.
func TestNoAddressOfARegistry(t *testing.T) {
	hosts := regexp.MustCompile(`registry\.` + `npmjs|registry\.` + `yarnpkg|proxy\.` + `golang\.org|deb\.` + `debian\.org`)
	for _, p := range files(t, ".go", ".json", ".npmrc", "Makefile", "Dockerfile", "run", "install", ".sh", ".md", ".yml", ".yaml") {
		if m := hosts.FindString(read(t, p)); m != "" {
			t.Errorf("%s names %s", p, m)
		}
	}
}

// TestDocumentsNameWhatExists: files, links and tests that the documents name are there.
func TestDocumentsNameWhatExists(t *testing.T) {
	tests := testNames(t)
	span := regexp.MustCompile("`[^`\n]*`")
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	named := regexp.MustCompile("`((?:server|agent|protocol|tests|web|migrations|docs)/[A-Za-z0-9_./-]+)`")
	test := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9_]*|Fuzz[A-Z][A-Za-z0-9_]*)`")
	for _, p := range files(t, ".md") {
		text := read(t, p)
		for _, m := range link.FindAllStringSubmatch(span.ReplaceAllString(text, ""), -1) {
			exists(t, p, filepath.Join(filepath.Dir(p), m[1]))
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			exists(t, p, strings.TrimSuffix(m[1], "/..."))
		}
		for _, m := range test.FindAllStringSubmatch(text, -1) {
			if !tests[m[1]] {
				t.Errorf("%s names %s, and there's no such test", p, m[1])
			}
		}
	}
}

// TestEveryGuaranteeNamesItsTest: a promise without a test is a wish.
func TestEveryGuaranteeNamesItsTest(t *testing.T) {
	sections := strings.Split(read(t, "docs/guarantees.md"), "\n## ")[1:]
	if len(sections) < 5 {
		t.Fatalf("%d guarantees", len(sections))
	}
	for _, s := range sections {
		title, _, _ := strings.Cut(s, "\n")
		if !strings.Contains(s, "**Limits") || !strings.Contains(s, "**Tests") || !strings.Contains(s, "`Test") {
			t.Errorf("%q lacks its limits or its tests", title)
		}
	}
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	all, _ := sources(t)
	names := map[string]bool{}
	for _, src := range all {
		for _, d := range src.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && src.test && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

func exists(t *testing.T, doc, path string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		t.Errorf("%s names %s, which isn't there", doc, path)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
