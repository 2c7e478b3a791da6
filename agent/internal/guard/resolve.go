package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drover-fleet/drover/protocol"
)

// maxLinks is how many links one path may lead through, as in Linux.
const maxLinks = 40

// maxPath bounds a path while links are followed, in bytes.
const maxPath = 64 << 10

// Resolve finds the place that a path names, following links; the last component may be
// missing. path is in the written form of Escape.
func (f *Files) Resolve(path string) (Place, error) { return f.resolve(path, true) }

// ResolveLink finds the place that a path names without following its last component.
func (f *Files) ResolveLink(path string) (Place, error) { return f.resolve(path, false) }

// Leads finds where a link at place leads; false when that's nowhere or outside.
func (f *Files) Leads(place Place) (Place, bool) {
	to, err := f.walk(place.path, place.path, true)
	return to, err == nil
}

// Escaped tells whether err, from a method of a Place, means that a link was put in the
// way after the path was resolved and leads out of the root.
func Escaped(err error) bool {
	// Package os has no exported error for it.
	return err != nil && strings.Contains(err.Error(), "path escapes from parent")
}

func (f *Files) resolve(text string, follow bool) (Place, error) {
	path := Unescape(text)
	if strings.ContainsRune(path, 0) {
		return Place{}, badPath("a path can't hold a NUL byte")
	}
	return f.walk(path, path, follow)
}

// walker is the state of one resolution: where it stands, and what's still to come.
type walker struct {
	files *Files
	shown string // the caller's own path, for errors
	cur   string // absolute, without links
	todo  []string
	links int
	// missing: cur isn't there; only names may follow.
	missing bool
}

func (f *Files) walk(path, shown string, follow bool) (Place, error) {
	w := &walker{files: f, shown: shown}
	if err := w.start(path); err != nil {
		return Place{}, err
	}
	trailing := false
	for len(w.todo) > 0 {
		part := w.todo[0]
		w.todo = w.todo[1:]
		if part == "" || part == "." {
			trailing = true // "link/" and "link/." mean what the link leads to
			continue
		}
		trailing = false
		last := !more(w.todo)
		if err := w.step(part, follow || !last || len(w.todo) > 0); err != nil {
			return Place{}, err
		}
	}
	place, ok := f.place(w.cur)
	if !ok {
		return Place{}, f.outside(shown)
	}
	for _, dir := range f.hidden {
		if _, ok := below(w.cur, dir); ok {
			return Place{}, protocol.Failf(protocol.ReasonEACCES, "%s belongs to the Drover agent itself; file tools don't reach it", Shown(shown))
		}
	}
	if trailing && !w.missing {
		if info, err := place.Lstat(); err == nil && !info.IsDir() {
			return Place{}, protocol.Failf(protocol.ReasonENOTDIR, "%s isn't a folder", Shown(shown))
		}
	}
	return place, nil
}

// more tells whether a real component is still to come.
func more(todo []string) bool {
	for _, p := range todo {
		if p != "" && p != "." {
			return true
		}
	}
	return false
}

// start sets the anchor. A path that begins with a root as it was configured begins at
// that root, even where the configured spelling leads through links outside.
func (w *walker) start(path string) error {
	anchor, parts, ok := split(path)
	if !ok {
		if w.files.Confined() {
			return w.files.outside(w.shown)
		}
		return badPath("%s isn't an absolute path; relative paths have no meaning on a host", Shown(w.shown))
	}
	w.cur, w.todo = anchor, parts
	for _, r := range w.files.roots {
		if rest, ok := cutPrefix(append([]string{anchor}, parts...), r.spelled); ok {
			w.cur, w.todo = r.path, rest
			return nil
		}
	}
	return nil
}

// cutPrefix removes the components of prefix from the front of parts; empty ones and dots
// don't count.
func cutPrefix(parts, prefix []string) (rest []string, ok bool) {
	for len(prefix) > 0 {
		if len(parts) == 0 {
			return nil, false
		}
		if parts[0] == "" || parts[0] == "." {
			parts = parts[1:]
			continue
		}
		if !sameName(parts[0], prefix[0]) {
			return nil, false
		}
		parts, prefix = parts[1:], prefix[1:]
	}
	return parts, true
}

// step goes on by one component.
func (w *walker) step(part string, follow bool) error {
	if part == ".." {
		if w.missing {
			return w.gone()
		}
		w.cur = filepath.Dir(w.cur)
		return nil
	}
	if odd(part) {
		return w.refuse()
	}
	next := join(w.cur, part)
	if len(next) > maxPath {
		return protocol.Failf(protocol.ReasonENAMETOOLONG, "%s is too long", Shown(w.shown))
	}
	if w.missing {
		w.cur = next
		return nil
	}
	place, ok := w.files.place(next)
	if !ok {
		if w.files.leadsDown(next) {
			w.cur = next
			return nil
		}
		return w.files.outside(w.shown)
	}
	info, err := place.Lstat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.cur, w.missing = next, true
		return nil
	case err != nil:
		return w.failed(err)
	case info.Mode()&fs.ModeSymlink == 0 || !follow:
		if more(w.todo) && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
			return protocol.Failf(protocol.ReasonENOTDIR, "%s leads through a file as if it were a folder", Shown(w.shown))
		}
		w.cur = next
		return nil
	}
	return w.follow(place)
}

// follow replaces the link at place by what it says.
func (w *walker) follow(place Place) error {
	if w.links++; w.links > maxLinks {
		return protocol.Failf("eloop", "%s leads through too many links", Shown(w.shown))
	}
	target, err := place.Readlink()
	if err != nil {
		return w.failed(err)
	}
	if anchor, parts, ok := split(target); ok {
		w.cur, w.todo = anchor, append(parts, w.todo...)
		return nil
	}
	if filepath.VolumeName(target) != "" {
		return w.refuse()
	}
	_, parts, _ := split(anchorOf(w.cur) + filepath.FromSlash(target))
	w.todo = append(parts, w.todo...)
	return nil
}

func anchorOf(path string) string {
	anchor, _, _ := split(path)
	return anchor
}

func (w *walker) gone() error {
	return protocol.Failf(protocol.ReasonENOENT, "%s leads through a folder that isn't there", Shown(w.shown))
}

func (w *walker) refuse() error {
	if w.files.Confined() {
		return w.files.outside(w.shown)
	}
	return protocol.Failf(protocol.ReasonEINVAL, "%s isn't a spelling that file tools take", Shown(w.shown))
}

// failed says why the way can't be followed, without naming what lies behind a link.
func (w *walker) failed(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return protocol.Failf(protocol.ReasonEACCES, "the agent's user may not follow %s", Shown(w.shown))
	case errors.Is(err, syscall.ENOTDIR):
		return protocol.Failf(protocol.ReasonENOTDIR, "%s leads through a file as if it were a folder", Shown(w.shown))
	case errors.Is(err, syscall.ENAMETOOLONG):
		return protocol.Failf(protocol.ReasonENAMETOOLONG, "%s has a name that's too long for the system", Shown(w.shown))
	}
	return protocol.Failf(protocol.ReasonIO, "%s can't be followed", Shown(w.shown))
}

// place finds the root that holds an absolute path without links.
func (f *Files) place(path string) (Place, bool) {
	if !f.Confined() {
		return Place{path: path, name: path}, true
	}
	for _, r := range f.roots {
		if rest, ok := below(path, r.path); ok {
			return Place{path: path, name: rest, dir: r.dir}, true
		}
	}
	return Place{}, false
}

// leadsDown tells whether path is on the way from the anchor to a root.
func (f *Files) leadsDown(path string) bool {
	for _, r := range f.roots {
		if _, ok := below(r.path, path); ok {
			return true
		}
	}
	return false
}

// below cuts dir from the front of path, whole components only; "." when they're the same.
func below(path, dir string) (rest string, ok bool) {
	sep := string(os.PathSeparator)
	n := len(dir)
	switch {
	case len(path) < n || !sameName(path[:n], dir):
		return "", false
	case len(path) == n:
		return ".", true
	case strings.HasSuffix(dir, sep):
		return path[n:], true
	case path[n:n+1] == sep:
		return path[n+1:], true
	}
	return "", false
}
