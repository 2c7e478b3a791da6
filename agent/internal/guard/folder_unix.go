//go:build !windows

package guard

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// folder is an open folder. What's done in it is done there and nowhere else, whatever its
// path leads to by now; names given to it are single components, or "." for itself, and
// none of its methods follows a link.
type folder struct {
	fd int
	id fileID
}

// fileID tells files apart however they're called.
type fileID struct{ dev, ino uint64 }

func (id fileID) is(other fileID) bool { return id == other }

// base is a root's folder, open for as long as the guard is.
type base struct{ file *os.File }

func openBase(path string) (base, error) {
	fd, err := again(func() (int, error) {
		return unix.Open(path, searchFlags|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return base{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return base{os.NewFile(uintptr(fd), path)}, nil
}

func (b base) close() error { return b.file.Close() }

// enter opens the folder once more, for one walk.
func (b base) enter() (*folder, error) {
	conn, err := b.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var in *folder
	// Within Control a concurrent Close waits, so that the number can't mean another file.
	if cerr := conn.Control(func(fd uintptr) {
		in, err = newFolder(unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0))
	}); cerr != nil {
		return nil, cerr
	}
	return in, err
}

// openAnchor opens the folder that every absolute path begins at.
func openAnchor(anchor string) (*folder, error) {
	return newFolder(again(func() (int, error) {
		return unix.Open(anchor, searchFlags|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}))
}

// newFolder takes over fd.
func newFolder(fd int, err error) (*folder, error) {
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &folder{fd: fd, id: idOf(&st)}, nil
}

func idOf(st *unix.Stat_t) fileID {
	return fileID{uint64(st.Dev), uint64(st.Ino)} // their types differ between systems
}

// identify is the id of what info, from lstat, describes.
func identify(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*unix.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return idOf(st), true
}

// identifyDir is the id of a folder that's named by a path of the host's owner.
func identifyDir(path string) (fileID, bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return idOf(&st), true, nil
}

func (f *folder) close() {
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
		f.fd = -1
	}
}

// step opens the folder called name, or reads the link that's there instead.
func (f *folder) step(name string) (next *folder, link string, err error) {
	next, err = newFolder(again(func() (int, error) {
		return unix.Openat(f.fd, name, searchFlags|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}))
	if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		return next, "", err
	}
	if link, lerr := f.readlink(name); lerr == nil {
		return nil, link, nil
	}
	return nil, "", unix.ENOTDIR
}

func (f *folder) lstat(name string) (fs.FileInfo, error) {
	i := &info{name: name}
	err := unix.Fstatat(f.fd, name, &i.st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	return i, nil
}

func (f *folder) readlink(name string) (string, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(f.fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size {
			return string(buf[:n]), nil
		}
		if size > maxPath {
			return "", unix.ENAMETOOLONG
		}
	}
}

// open opens a file; path is for people. known tells whether id is.
func (f *folder) open(name, path string, flag int, perm fs.FileMode) (file *os.File, id fileID, err error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(f.fd, name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
	})
	if err != nil {
		return nil, id, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, id, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), idOf(&st), nil
}

// openDir opens a folder for listing, and as one.
func (f *folder) openDir(name, path string) (*os.File, *folder, error) {
	in, err := newFolder(again(func() (int, error) {
		return unix.Openat(f.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}))
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	fd, err := unix.FcntlInt(uintptr(in.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		in.close()
		return nil, nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), in, nil
}

func (f *folder) mkdir(name string, perm fs.FileMode) error {
	return unix.Mkdirat(f.fd, name, uint32(perm.Perm()))
}

// remove removes a file or an empty folder.
func (f *folder) remove(name string) error {
	err := unix.Unlinkat(f.fd, name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if derr := unix.Unlinkat(f.fd, name, unix.AT_REMOVEDIR); derr != unix.ENOTDIR {
		return derr
	}
	return err
}

func (f *folder) rename(from, to string) error { return unix.Renameat(f.fd, from, f.fd, to) }

func (f *folder) link(from, to string) error { return unix.Linkat(f.fd, from, f.fd, to, 0) }

// sync makes a rename within the folder last through a power failure.
func (f *folder) sync() error {
	fd, err := again(func() (int, error) {
		return unix.Openat(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil // a folder that may be written to and not read can't be synced
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Fsync(fd); err != nil && err != unix.EINVAL && err != unix.ENOTSUP {
		return err
	}
	return nil
}

// again repeats what a signal interrupted, as package os does.
func again(open func() (int, error)) (int, error) {
	for {
		if fd, err := open(); err != unix.EINTR {
			return fd, err
		}
	}
}

// swapped tells whether an open failed because a link is where there was none.
func swapped(err error) bool { return errors.Is(err, unix.ELOOP) }

// info describes a file as fstatat does; package os makes none relative to a folder.
type info struct {
	name string
	st   unix.Stat_t
}

func (i *info) Name() string { return filepath.Base(i.name) }

func (i *info) Size() int64 { return i.st.Size }

func (i *info) ModTime() time.Time { return time.Unix(i.st.Mtim.Unix()) }

func (i *info) IsDir() bool { return i.Mode().IsDir() }

// Sys is a *unix.Stat_t.
func (i *info) Sys() any { return &i.st }

func (i *info) Mode() fs.FileMode {
	m := fs.FileMode(i.st.Mode & 0o777)
	switch i.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		m |= fs.ModeDir
	case unix.S_IFLNK:
		m |= fs.ModeSymlink
	case unix.S_IFIFO:
		m |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		m |= fs.ModeSocket
	case unix.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	for bit, is := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if uint32(i.st.Mode)&bit != 0 {
			m |= is
		}
	}
	return m
}
