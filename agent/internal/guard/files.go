// Package guard is what this host never allows, whoever asks. Its first part confines the
// file tools to folders that the host's owner opened to them.
package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/drover-fleet/drover/protocol"
)

// Files decides where the file tools may reach: below its roots, or everywhere when there
// are none. What a path means is decided component by component after links were followed,
// so that every spelling of a place gets the same verdict, and what lies outside isn't even
// looked at. Hard links and mounts that the host's owner made inside a root lead where they
// lead.
type Files struct {
	roots  []root
	hidden []string
}

type root struct {
	spelled []string // as configured, with its anchor
	path    string   // without links
	dir     *os.Root
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
	dir, err := os.OpenRoot(real)
	if err != nil {
		return fmt.Errorf("root %q: %w", name, err)
	}
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" || p == "." })
	f.roots = append(f.roots, root{spelled: append([]string{anchor}, parts...), path: real, dir: dir})
	return nil
}

// Hide keeps the file tools out of a folder wherever the roots are: the agent's own, whose
// key would let its reader be this host. It doesn't hinder commands, which run as the
// agent's user.
func (f *Files) Hide(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("hide %q: %w", dir, err)
	}
	f.hidden = append(f.hidden, real)
	return nil
}

// Close releases the roots.
func (f *Files) Close() error {
	var errs []error
	for _, r := range f.roots {
		errs = append(errs, r.dir.Close())
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

// Place is where a path leads: nothing of it is a link, save its last component when it was
// found without following. A link that somebody puts in its way afterwards can't lead out
// of the root, because the root's own handle is what's opened from.
type Place struct {
	path string // absolute, for people
	name string // relative to dir, or absolute when dir is nil
	dir  *os.Root
}

// Path is the absolute path without links.
func (p Place) Path() string { return p.path }

// Open opens the file with flags of package os.
func (p Place) Open(flag int, perm fs.FileMode) (*os.File, error) {
	if p.dir == nil {
		return os.OpenFile(p.name, flag, perm)
	}
	return p.dir.OpenFile(p.name, flag, perm)
}

// Lstat describes the place; a link itself, not what it leads to.
func (p Place) Lstat() (fs.FileInfo, error) {
	if p.dir == nil {
		return os.Lstat(p.name)
	}
	return p.dir.Lstat(p.name)
}

// Readlink reads a link.
func (p Place) Readlink() (string, error) {
	if p.dir == nil {
		return os.Readlink(p.name)
	}
	return p.dir.Readlink(p.name)
}

// Mkdir makes a folder.
func (p Place) Mkdir(perm fs.FileMode) error {
	if p.dir == nil {
		return os.Mkdir(p.name, perm)
	}
	return p.dir.Mkdir(p.name, perm)
}

// Remove removes a file or an empty folder.
func (p Place) Remove() error {
	if p.dir == nil {
		return os.Remove(p.name)
	}
	return p.dir.Remove(p.name)
}

// Rename moves the place to another in the same folder, replacing what's there.
func (p Place) Rename(to Place) error {
	if p.dir == nil {
		return os.Rename(p.name, to.name)
	}
	return p.dir.Rename(p.name, to.name)
}

// Link gives the place a second name in the same folder; it fails when that exists.
func (p Place) Link(to Place) error {
	if p.dir == nil {
		return os.Link(p.name, to.name)
	}
	return p.dir.Link(p.name, to.name)
}

// Parent is the folder that holds the place; ok is false at a root.
func (p Place) Parent() (Place, bool) {
	up := filepath.Dir(p.name)
	if up == p.name || p.dir != nil && p.name == "." {
		return Place{}, false
	}
	return Place{path: filepath.Dir(p.path), name: up, dir: p.dir}, true
}

// Child is the place of one name within this folder. The name is taken as it is and must
// be a single component.
func (p Place) Child(name string) Place {
	return Place{path: join(p.path, name), name: join(p.name, name), dir: p.dir}
}

// join is filepath.Join without cleaning: a name that came from a folder is one component.
func join(dir, name string) string {
	switch {
	case dir == ".":
		return name
	case strings.HasSuffix(dir, string(filepath.Separator)):
		return dir + name
	}
	return dir + string(filepath.Separator) + name
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
