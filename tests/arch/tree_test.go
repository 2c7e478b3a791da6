// Package arch holds the house in shape: what may import what, how large things get, and
// what documents may claim. It reads the tree; it imports nothing of it.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/drover-fleet/drover"

// root is the repository, seen from this package.
const root = "../.."

// source is one parsed Go file.
type source struct {
	path string // below the root, with slashes
	dir  string
	test bool
	// own is whether people wrote it; a generated file has no size.
	own   bool
	lines int
	file  *ast.File
}

// sources parses every Go file of the repository, whatever its build tags.
func sources(t *testing.T) ([]source, *token.FileSet) {
	t.Helper()
	set := token.NewFileSet()
	var all []source
	for _, p := range files(t, ".go") {
		text, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(set, p, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{
			path: p, dir: filepath.ToSlash(filepath.Dir(p)), test: strings.HasSuffix(p, "_test.go") || strings.HasPrefix(p, "tests/") || strings.Contains(p, "/storetest/"),
			own: !ast.IsGenerated(f), lines: strings.Count(string(text), "\n"), file: f,
		})
	}
	if len(all) < 20 {
		t.Fatalf("only %d Go files were found: the walk is broken", len(all))
	}
	return all, set
}

// files lists the repository's files with one of these endings, without what is installed
// or built.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case "node_modules", ".git", "bin", "dist", ".data", "out":
				return fs.SkipDir
			}
			return nil
		}
		for _, e := range endings {
			if strings.HasSuffix(d.Name(), e) {
				rel, err := filepath.Rel(root, p)
				if err != nil {
					return err
				}
				out = append(out, filepath.ToSlash(rel))
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func golang(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return strings.Fields(string(out))
}
