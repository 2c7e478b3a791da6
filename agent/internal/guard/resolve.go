package guard

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/drover-fleet/drover/protocol"
)

// maxLinks is how many links one path may lead through, as in Linux.
const maxLinks = 40

// maxPath bounds a path while links are followed, in bytes.
const maxPath = 64 << 10

// maxHeld is how many folders one walk holds open. Above them it walks again by names.
const maxHeld = 32

// Resolve finds the place that a path names, following links; the last component may be
// missing. path is in the written form of Escape. The place is to be closed.
func (f *Files) Resolve(path string) (*Place, error) { return f.resolve(path, true) }

// ResolveLink finds the place that a path names without following its last component.
func (f *Files) ResolveLink(path string) (*Place, error) { return f.resolve(path, false) }

// Leads reads the link at a place and finds where it leads; ok is false when that's nowhere
// or outside. The place that it leads to is to be closed.
func (f *Files) Leads(p *Place) (to *Place, target string, ok bool) {
	target, err := p.Readlink()
	if err != nil || p.in.misleads(p.name, target) {
		return nil, "", false
	}
	path := target
	if _, _, absolute := split(target); !absolute {
		if filepath.VolumeName(target) != "" {
			return nil, "", false
		}
		path = join(filepath.Dir(p.path), target)
	}
	to, err = f.walk(path, p.path, true)
	return to, target, err == nil
}

// Escaped tells whether err, from a method of a Place on Windows, means that a link was put
// in the way after the path was resolved and leads out of the root.
func Escaped(err error) bool {
	// Package os has no exported error for it.
	return err != nil && strings.Contains(err.Error(), "path escapes from parent")
}

func (f *Files) resolve(text string, follow bool) (*Place, error) {
	path := Unescape(text)
	if strings.ContainsRune(path, 0) {
		return nil, badPath("a path can't hold a NUL byte")
	}
	return f.walk(path, path, follow)
}

// walker is the state of one resolution: where it stands, and what's still to come.
type walker struct {
	files *Files
	shown string // the caller's own path, for errors
	cur   string // absolute, without links
	// held are open folders: the last is that at cur, and each is in the one before it.
	// There's none while cur is above the roots.
	held  []*folder
	name  string // the last component, in the folder at cur, when it's there
	todo  []string
	links int
	// missing are names below cur that aren't there; only names may follow.
	missing []string
	size    int // of missing, in bytes
}

func (f *Files) walk(path, shown string, follow bool) (*Place, error) {
	w := &walker{files: f, shown: shown}
	defer w.leave()
	if err := w.start(path); err != nil {
		return nil, err
	}
	for len(w.todo) > 0 {
		part := w.todo[0]
		w.todo = w.todo[1:]
		var err error
		switch {
		case part == "" || part == ".":
		case part == "..":
			err = w.up()
		case odd(part):
			err = w.refuse()
		case len(w.cur)+w.size+len(part) > maxPath:
			err = protocol.Failf(protocol.ReasonENAMETOOLONG, "%s is too long", Shown(shown))
		case len(w.missing) > 0:
			w.miss(part)
		case len(w.held) == 0:
			err = w.approach(join(w.cur, part))
		case more(w.todo):
			err = w.step(part)
		default: // "link/" and "link/." mean what the link leads to
			err = w.last(part, follow)
		}
		if err != nil {
			return nil, err
		}
	}
	return w.place()
}

// place is where the walk has come to.
func (w *walker) place() (*Place, error) {
	if len(w.held) == 0 {
		return nil, w.files.outside(w.shown)
	}
	p := &Place{files: w.files, name: ".", path: w.cur}
	switch {
	case len(w.missing) > 0:
		p.name, p.below = w.missing[0], w.missing[1:]
		p.path = join(w.cur, strings.Join(w.missing, string(filepath.Separator)))
	case w.name != "":
		p.name, p.path = w.name, join(w.cur, w.name)
	}
	for _, h := range w.files.hidden {
		if _, ok := below(p.path, h.path); ok {
			return nil, hidden(w.shown)
		}
	}
	top := len(w.held) - 1
	p.in, w.held = w.held[top], w.held[:top]
	return p, nil
}

// leave closes what's held.
func (w *walker) leave() {
	for _, f := range w.held {
		f.close()
	}
	w.held = nil
}

// push goes on to a folder, which it takes over.
func (w *walker) push(in *folder, path string) error {
	w.held = append(w.held, in)
	if w.files.hides(in.id) {
		return hidden(w.shown)
	}
	if len(w.held) > maxHeld {
		w.held[0].close()
		w.held = slices.Delete(w.held, 0, 1)
	}
	w.cur = path
	return nil
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

// start begins at the anchor. A path that begins with a root as it was configured begins at
// that root, even where the configured spelling leads through links outside.
func (w *walker) start(path string) error {
	anchor, parts, ok := split(path)
	if !ok {
		if w.files.Confined() {
			return w.files.outside(w.shown)
		}
		return badPath("%s isn't an absolute path; relative paths have no meaning on a host", Shown(w.shown))
	}
	for _, r := range w.files.roots {
		if rest, ok := cutPrefix(append([]string{anchor}, parts...), r.spelled); ok {
			w.todo = rest
			return w.approach(r.path)
		}
	}
	return w.restart(anchor, parts)
}

// restart goes on at an anchor, with parts before what's still to come.
func (w *walker) restart(anchor string, parts []string) error {
	w.leave()
	w.todo = append(parts, w.todo...)
	return w.approach(anchor)
}

// approach goes to path, which is where the walk may come inside; above the roots, nothing
// is looked at.
func (w *walker) approach(path string) error {
	in, err := w.files.enter(path)
	switch {
	case err != nil:
		return w.failed(err)
	case in != nil:
		return w.push(in, path)
	case w.files.leadsDown(path):
		w.cur = path
		return nil
	}
	return w.files.outside(w.shown)
}

// enter opens the root at path; nil when there's none.
func (f *Files) enter(path string) (*folder, error) {
	for _, r := range f.roots {
		if sameName(r.path, path) {
			return r.base.enter()
		}
	}
	if !f.Confined() && path == anchorOf(path) {
		return openAnchor(path)
	}
	return nil, nil
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

// up goes on to the folder above.
func (w *walker) up() error {
	if len(w.missing) > 0 {
		return protocol.Failf(protocol.ReasonENOENT, "%s leads through a folder that isn't there", Shown(w.shown))
	}
	above := filepath.Dir(w.cur)
	if n := len(w.held) - 1; n > 0 {
		w.held[n].close()
		w.held, w.cur = w.held[:n], above
		return nil
	}
	anchor, parts, _ := split(above)
	return w.restart(anchor, parts)
}

// step goes on through the folder called part, or the link.
func (w *walker) step(part string) error {
	next, link, err := w.here().step(part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.miss(part)
		return nil
	case err != nil:
		return w.failed(err)
	case next == nil:
		return w.follow(part, link)
	}
	return w.push(next, join(w.cur, part))
}

// last looks at the last component. What comes after it can only be slashes and dots, which
// mean that it has to be a folder.
func (w *walker) last(part string, follow bool) error {
	mustBeDir := len(w.todo) > 0
	info, err := w.here().lstat(part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.miss(part)
		return nil
	case err != nil:
		return w.failed(err)
	case info.Mode()&fs.ModeSymlink != 0 && (follow || mustBeDir):
		link, err := w.here().readlink(part)
		if errors.Is(err, syscall.EINVAL) { // it's no link any more: look again, as often as links are followed
			w.todo = append([]string{part}, w.todo...)
			return w.linked()
		}
		if err != nil {
			return w.failed(err)
		}
		return w.follow(part, link)
	case mustBeDir && !info.IsDir():
		return protocol.Failf(protocol.ReasonENOTDIR, "%s isn't a folder", Shown(w.shown))
	}
	if id, ok := identify(info); ok && w.files.hides(id) {
		return hidden(w.shown)
	}
	w.name = part
	return nil
}

func (w *walker) here() *folder { return w.held[len(w.held)-1] }

func (w *walker) miss(part string) {
	w.missing = append(w.missing, part)
	w.size += len(part) + 1
}

// linked counts a link.
func (w *walker) linked() error {
	if w.links++; w.links > maxLinks {
		return protocol.Failf("eloop", "%s leads through too many links", Shown(w.shown))
	}
	return nil
}

// follow replaces the link called part by what it says.
func (w *walker) follow(part, link string) error {
	if err := w.linked(); err != nil {
		return err
	}
	if w.here().misleads(part, link) {
		return protocol.Failf(protocol.ReasonEINVAL, "%s leads through a link of /proc into another root or namespace, or to what was deleted, where file tools don't follow; use shell_exec", Shown(w.shown))
	}
	if anchor, parts, ok := split(link); ok {
		return w.restart(anchor, parts)
	}
	if filepath.VolumeName(link) != "" {
		return w.refuse()
	}
	_, parts, _ := split(anchorOf(w.cur) + filepath.FromSlash(link))
	w.todo = append(parts, w.todo...)
	return nil
}

func anchorOf(path string) string {
	anchor, _, _ := split(path)
	return anchor
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
	sep := string(filepath.Separator)
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
