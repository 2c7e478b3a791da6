package guard

import (
	"io/fs"
	"os"
	"syscall"
)

// folder is a folder by its name, in a root that's held open or, without roots, by its
// path. A link that's swapped in after the walk can't lead out of a root, which package os
// sees to; making links takes a privilege here.
type folder struct {
	dir  *os.Root
	name string // relative to dir, or absolute when dir is nil
	id   fileID
}

// fileID tells files apart however they're called: a folder has a short name, and may be
// shared or lie on several drives. The system is asked when two are compared.
type fileID struct{ info fs.FileInfo }

func (id fileID) is(other fileID) bool {
	return id.info != nil && other.info != nil && os.SameFile(id.info, other.info)
}

// base is a root's folder, open for as long as the guard is.
type base struct{ dir *os.Root }

func openBase(path string) (base, error) {
	dir, err := os.OpenRoot(path)
	return base{dir}, err
}

func (b base) close() error { return b.dir.Close() }

func (b base) enter() (*folder, error) {
	info, err := b.dir.Stat(".")
	return &folder{dir: b.dir, name: ".", id: fileID{info}}, err
}

func openAnchor(anchor string) (*folder, error) {
	info, err := os.Stat(anchor)
	return &folder{name: anchor, id: fileID{info}}, err
}

func identify(info fs.FileInfo) (fileID, bool) { return fileID{info}, true }

func identifyDir(path string) (id fileID, known bool, err error) {
	id.info, err = os.Stat(path)
	return id, id.is(id), err
}

func (*folder) close() {}

func (*folder) misleads(string, string) bool { return false }

func (f *folder) at(name string) string {
	if name == "." {
		return f.name
	}
	return join(f.name, name)
}

func (f *folder) step(name string) (next *folder, link string, err error) {
	info, err := f.lstat(name)
	switch {
	case err != nil:
		return nil, "", err
	case info.Mode()&fs.ModeSymlink != 0:
		link, err = f.readlink(name)
		return nil, link, err
	case !info.IsDir():
		return nil, "", syscall.ENOTDIR
	}
	return &folder{dir: f.dir, name: f.at(name), id: fileID{info}}, "", nil
}

func (f *folder) lstat(name string) (fs.FileInfo, error) {
	if f.dir == nil {
		return os.Lstat(f.at(name))
	}
	return f.dir.Lstat(f.at(name))
}

func (f *folder) readlink(name string) (string, error) {
	if f.dir == nil {
		return os.Readlink(f.at(name))
	}
	return f.dir.Readlink(f.at(name))
}

func (f *folder) open(name, _ string, flag int, perm fs.FileMode) (file *os.File, id fileID, err error) {
	if f.dir == nil {
		file, err = os.OpenFile(f.at(name), flag, perm)
	} else {
		file, err = f.dir.OpenFile(f.at(name), flag, perm)
	}
	if err != nil {
		return nil, id, err
	}
	if id.info, err = file.Stat(); err != nil {
		_ = file.Close()
		return nil, id, err
	}
	return file, id, nil
}

func (f *folder) openDir(name, path string) (*os.File, *folder, error) {
	file, id, err := f.open(name, path, os.O_RDONLY, 0)
	return file, &folder{dir: f.dir, name: f.at(name), id: id}, err
}

func (f *folder) mkdir(name string, perm fs.FileMode) error {
	if f.dir == nil {
		return os.Mkdir(f.at(name), perm)
	}
	return f.dir.Mkdir(f.at(name), perm)
}

func (f *folder) remove(name string) error {
	if f.dir == nil {
		return os.Remove(f.at(name))
	}
	return f.dir.Remove(f.at(name))
}

func (f *folder) rename(from, to string) error {
	if f.dir == nil {
		return os.Rename(f.at(from), f.at(to))
	}
	return f.dir.Rename(f.at(from), f.at(to))
}

func (f *folder) link(from, to string) error {
	if f.dir == nil {
		return os.Link(f.at(from), f.at(to))
	}
	return f.dir.Link(f.at(from), f.at(to))
}

// sync: a folder can't be synced here; the rename is journalled by the file system.
func (*folder) sync() error { return nil }

func swapped(error) bool { return false }
