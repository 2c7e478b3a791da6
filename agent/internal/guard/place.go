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

// maxMissing is how many folders MakeParents makes.
const maxMissing = 128

// Place is where a path leads: a name in a folder that's held open until Close. Nothing of
// the path is a link, save its last component when it was found without following. On Unix
// all that's done with a place is done in that very folder, so that nothing put in its way
// afterwards changes what it is. On Windows the folder is found again by its name; a link
// put there meanwhile can't lead out of a root.
type Place struct {
	files *Files
	in    *folder
	name  string   // "." for the folder itself
	below []string // what's to come after name, when the folder called name isn't there
	path  string   // absolute, for people
}

// Path is the absolute path without links.
func (p *Place) Path() string { return p.path }

// Close releases the folder; places of Beside go with it.
func (p *Place) Close() { p.in.close() }

// absent is the error of a place whose folder isn't there.
func (p *Place) absent(op string) error {
	if len(p.below) == 0 {
		return nil
	}
	return &fs.PathError{Op: op, Path: p.path, Err: syscall.ENOENT}
}

// Open opens the file with flags of package os.
func (p *Place) Open(flag int, perm fs.FileMode) (*os.File, error) {
	if err := p.absent("open"); err != nil {
		return nil, err
	}
	f, id, err := p.in.open(p.name, p.path, flag, perm)
	if err != nil {
		if swapped(err) {
			return nil, protocol.Failf("eloop", "%s was replaced by a link while it was being opened; see with fs_stat where that leads", Shown(p.path))
		}
		return nil, err
	}
	if p.files.hides(id) {
		_ = f.Close()
		return nil, hidden(p.path)
	}
	return f, nil
}

// Lstat describes the place; a link itself, not what it leads to.
func (p *Place) Lstat() (fs.FileInfo, error) {
	if err := p.absent("lstat"); err != nil {
		return nil, err
	}
	info, err := p.in.lstat(p.name)
	if err != nil {
		return nil, err
	}
	if id, ok := identify(info); ok && p.files.hides(id) {
		return nil, hidden(p.path)
	}
	return info, nil
}

// Readlink reads a link.
func (p *Place) Readlink() (string, error) {
	if err := p.absent("readlink"); err != nil {
		return "", err
	}
	return p.in.readlink(p.name)
}

// Remove removes a file or an empty folder.
func (p *Place) Remove() error { return p.in.remove(p.name) }

// Rename moves the place to another in the same folder, replacing what's there.
func (p *Place) Rename(to *Place) error { return p.in.rename(p.name, to.name) }

// Link gives the place a second name in the same folder; it fails when that exists.
func (p *Place) Link(to *Place) error { return p.in.link(p.name, to.name) }

// SyncFolder makes a rename last through a power failure, where the system can.
func (p *Place) SyncFolder() error { return p.in.sync() }

// Beside is the place of another name in the same folder, which it shares. The name is
// taken as it is and must be a single component.
func (p *Place) Beside(name string) *Place {
	return &Place{files: p.files, in: p.in, name: name, path: join(filepath.Dir(p.path), name)}
}

// FolderMissing tells whether the folder of the place wasn't there.
func (p *Place) FolderMissing() bool { return len(p.below) > 0 }

// MakeParents makes the folders that the place lacks, and returns those that it made,
// outermost first, also with an error. They are to be closed.
func (p *Place) MakeParents(perm fs.FileMode) (made []*Place, err error) {
	if len(p.below) > maxMissing {
		return nil, protocol.Failf(protocol.ReasonENAMETOOLONG, "%s lacks more than %d folders", Shown(p.path), maxMissing)
	}
	for len(p.below) > 0 {
		next, mine, err := p.makeFolder(perm)
		if err != nil {
			return made, err
		}
		above := &Place{files: p.files, in: p.in, name: p.name}
		p.in, p.name, p.below = next, p.below[0], p.below[1:]
		if mine {
			made = append(made, above)
		} else {
			above.Close()
		}
	}
	return made, nil
}

// makeFolder makes and opens the next missing folder; mine is false when somebody else has
// made it meanwhile.
func (p *Place) makeFolder(perm fs.FileMode) (next *folder, mine bool, err error) {
	err = p.in.mkdir(p.name, perm)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	mine = err == nil
	next, _, err = p.in.step(p.name)
	switch {
	case err == nil && next == nil:
		err = syscall.ENOTDIR // a link has come there
	case err == nil && p.files.hides(next.id):
		next.close()
		err = hidden(p.path)
	}
	if err != nil && mine {
		_ = p.in.remove(p.name)
	}
	return next, mine, err
}

// Listing is a folder open for listing.
type Listing struct {
	*os.File
	place Place
}

// List opens the folder at the place.
func (p *Place) List() (*Listing, error) {
	if err := p.absent("open"); err != nil {
		return nil, err
	}
	f, in, err := p.in.openDir(p.name, p.path)
	if err != nil {
		return nil, err
	}
	l := &Listing{File: f, place: Place{files: p.files, in: in, path: p.path}}
	if p.files.hides(in.id) {
		_ = l.Close()
		return nil, hidden(p.path)
	}
	return l, nil
}

// Child is the place of a name that the listing gave; it goes with the listing.
func (l *Listing) Child(name string) *Place {
	return &Place{files: l.place.files, in: l.place.in, name: name, path: join(l.place.path, name)}
}

// Close ends the listing.
func (l *Listing) Close() error {
	l.place.Close()
	return l.File.Close()
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

// hidden is the refusal of the agent's own folder.
func hidden(path string) error {
	return protocol.Failf(protocol.ReasonEACCES, "%s belongs to the Drover agent itself; file tools don't reach it", Shown(path))
}
