// Package mutants breaks each promise in a copy of the tree and demands that the test which
// the patch names sees it.
package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const root = "../.."

// copies is how many trees are tested at once.
const copies = 2

// mutant is one patch. Its head tells in lines of "word: text" what it breaks (breaks), which
// test must see it (killed-by: PACKAGE TEST), and, where that proves more, what the failing
// test must have said (says) and must not have said (never).
type mutant struct {
	file, breaks  string
	pkg, test     string
	says, never   string
	patch         []byte
	touchedByPath []string
}

var touched = regexp.MustCompile(`(?m)^--- a/(\S+)`)

// load reads a patch and its head.
func load(t *testing.T, file string) mutant {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := mutant{file: strings.TrimSuffix(filepath.Base(file), ".patch"), patch: b}
	head, _, _ := strings.Cut(string(b), "\n--- a/")
	for line := range strings.Lines(head) {
		word, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch word {
		case "breaks":
			m.breaks = text
		case "killed-by":
			m.pkg, m.test, _ = strings.Cut(text, " ")
		case "says":
			m.says = text
		case "never":
			m.never = text
		}
	}
	for _, p := range touched.FindAllStringSubmatch(string(b), -1) {
		m.touchedByPath = append(m.touchedByPath, p[1])
	}
	if m.breaks == "" || !strings.HasPrefix(m.pkg, "./") || !strings.HasPrefix(m.test, "Test") || len(m.touchedByPath) == 0 {
		t.Fatalf("%s: the head must have the lines breaks: …, and killed-by: ./PACKAGE TestName, and a diff must follow", file)
	}
	return m
}

// TestMutants: every patch applies, compiles and is killed by its test, which passes without
// it.
func TestMutants(t *testing.T) {
	files, err := filepath.Glob("*.patch")
	if err != nil || len(files) < 10 {
		t.Fatalf("only %d patches, %v", len(files), err)
	}
	var all []mutant
	for _, f := range files {
		all = append(all, load(t, f))
	}
	// Neighbours break the same packages: what one compiled helps the next.
	slices.SortStableFunc(all, func(a, b mutant) int { return strings.Compare(a.touchedByPath[0], b.touchedByPath[0]) })
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range copies {
		tr := copyTree(t)
		workers.Go(func() {
			for j := range jobs {
				t.Run(j.name, func(t *testing.T) { j.run(t, tr) })
			}
		})
	}
	for _, j := range whole(all) {
		jobs <- j
	}
	for _, m := range all {
		jobs <- job{"broken/" + m.file, func(t *testing.T, tr tree) { tr.mustDie(t, m) }}
	}
	close(jobs)
	workers.Wait()
}

// job is one subtest, for the first tree that's free.
type job struct {
	name string
	run  func(*testing.T, tree)
}

// whole runs every named test on the tree as it is, those of tests/e2e, which take longest,
// first.
func whole(all []mutant) (jobs []job) {
	named := map[string][]string{}
	for _, m := range all {
		if !slices.Contains(named[m.pkg], m.test) {
			named[m.pkg] = append(named[m.pkg], m.test)
		}
	}
	for _, pkg := range slices.Backward(slices.Sorted(maps.Keys(named))) {
		tests := named[pkg]
		jobs = append(jobs, job{"whole/" + pkg, func(t *testing.T, tr tree) {
			out, err := tr.test(t.Context(), pkg, "^("+strings.Join(tests, "|")+")$")
			if err != nil {
				t.Errorf("without any patch: %v\n%s", err, out)
			}
			for _, name := range tests {
				if !bytes.Contains(out, []byte("--- PASS: "+name+" (")) {
					t.Errorf("%s has no test %s, or it was skipped: a patch names it", pkg, name)
				}
			}
		}})
	}
	return jobs
}

// tree is a copy of the repository.
type tree string

// mustDie applies a patch, runs its test and puts the tree back.
func (tr tree) mustDie(t *testing.T, m mutant) {
	originals := map[string][]byte{}
	for _, p := range m.touchedByPath {
		b, err := os.ReadFile(filepath.Join(string(tr), p))
		if err != nil {
			t.Fatalf("%s breaks a file that isn't there; write it anew: %v", m.file, err)
		}
		originals[p] = b
	}
	defer func() {
		for p, b := range originals {
			if err := os.WriteFile(filepath.Join(string(tr), p), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}()
	apply := exec.CommandContext(t.Context(), "git", "apply", "-C1", "-")
	// Without a repository around it, git applies to the folder, whatever holds that.
	apply.Dir, apply.Env = string(tr), append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(string(tr)))
	apply.Stdin = bytes.NewReader(m.patch)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("the patch no longer applies: the code it breaks has changed, so write it anew, that it breaks the same promise (%s)\n%s", m.breaks, out)
	}
	out, err := tr.test(t.Context(), m.pkg, "^"+m.test+"$")
	switch {
	case err == nil:
		t.Errorf("ALIVE: %s passes though this is broken: %s", m.test, m.breaks)
	case !bytes.Contains(out, []byte("--- FAIL: "+m.test+" (")):
		t.Errorf("the test run failed, but not by %s; does the patch compile?\n%s", m.test, out)
	case m.says != "" && !bytes.Contains(out, []byte(m.says)):
		t.Errorf("%s failed without saying %q:\n%s", m.test, m.says, out)
	case m.never != "" && bytes.Contains(out, []byte(m.never)):
		t.Errorf("%s said %q:\n%s", m.test, m.never, out)
	}
}

// test runs tests of one package in the copy.
func (tr tree) test(ctx context.Context, pkg, run string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-trimpath", "-vet=off", "-ldflags=-s -w", "-count=1", "-v", "-failfast", "-timeout=150s", "-run", run, pkg)
	cmd.Dir = string(tr)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return out[max(0, len(out)-64<<10):], err
}

// copyTree copies what Go needs to build and test: no installed packages, no builds.
func copyTree(t *testing.T) tree {
	t.Helper()
	to := t.TempDir()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // somebody works in the tree
			}
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch d.Name() {
			case "node_modules", ".git", "bin", ".data", "out", "src":
				return fs.SkipDir
			case "dist":
				if rel == "dist" {
					return fs.SkipDir
				}
			}
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
	if err != nil {
		t.Fatal(fmt.Errorf("copy: %w", err))
	}
	return tree(to)
}
