// Package guard is what this host never allows, whoever asks. Its first part confines the
// file tools to folders that the host's owner opened to them.
package guard

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drover-fleet/drover/protocol"
)

// Files decides where the file tools may reach: below its roots, or everywhere when there
// are none. What a path means is decided component by component after links were followed,
// so that every spelling of a place gets the same verdict, and what lies outside isn't even
// looked at. On Unix the walk holds the folders open that it comes through, so that swapping
// one for a link meanwhile leads nowhere else. Hard links and mounts that the host's owner made inside a root lead where they
// lead.
type Files struct {
	roots  []root
	hidden []secret
}

// secret is a folder that's out of reach.
type secret struct {
	path  string // without links
	id    fileID
	known bool // id is: on Unix
}

type root struct {
	spelled []string // as configured, with its anchor
	path    string   // without links
	base    base
}

// NewFiles opens the roots: absolute paths of existing folders. Close releases them.
func NewFiles(roots []string) (*Files, error) {
	f := &Files{}
	for _, r := range roots {
		if err := f.add(r); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

func (f *Files) add(name string) error {
	anchor, parts, ok := split(name)
	if !ok {
		return fmt.Errorf("root %q must be an absolute path", name)
	}
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return fmt.Errorf("root %q: %w", name, err)
	}
	base, err := openBase(real)
	if err != nil {
		return fmt.Errorf("root %q: %w", name, err)
	}
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" || p == "." })
	f.roots = append(f.roots, root{spelled: append([]string{anchor}, parts...), path: real, base: base})
	return nil
}

// Hide keeps the file tools out of a folder wherever the roots are: the agent's own, whose
// key would let its reader be this host. The folder is known by what the system tells files
// apart by, and no walk goes through it, whatever leads there. It doesn't hinder commands,
// which run as the agent's user.
func (f *Files) Hide(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("hide %q: %w", dir, err)
	}
	id, known, err := identifyDir(real)
	if err != nil {
		return fmt.Errorf("hide %q: %w", dir, err)
	}
	f.hidden = append(f.hidden, secret{path: real, id: id, known: known})
	return nil
}

// Close releases the roots.
func (f *Files) Close() error {
	var errs []error
	for _, r := range f.roots {
		errs = append(errs, r.base.close())
	}
	return errors.Join(errs...)
}

// Confined tells whether there are roots.
func (f *Files) Confined() bool { return len(f.roots) > 0 }

// Roots lists the roots' paths without links, for the host's facts.
func (f *Files) Roots() []string {
	var out []string
	for _, r := range f.roots {
		out = append(out, r.path)
	}
	return out
}

// hides tells whether a folder is one that's hidden.
func (f *Files) hides(id fileID) bool {
	for _, h := range f.hidden {
		if h.known && h.id.is(id) {
			return true
		}
	}
	return false
}

// outside is the one refusal for everything beyond the roots. It names the caller's own
// path and the open folders, never where a link leads.
func (f *Files) outside(path string) error {
	return protocol.Failf(protocol.ReasonOutsideRoot,
		"%s is outside the folders that this host opened to file tools (%s); give an absolute path within them", Shown(path), strings.Join(f.shownRoots(), ", "))
}

func (f *Files) shownRoots() []string {
	var out []string
	for i, r := range f.roots {
		if i == 8 {
			return append(out, "…")
		}
		out = append(out, Shown(r.path))
	}
	return out
}
