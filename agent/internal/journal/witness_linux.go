package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// openWitness replaces the witness of a state folder by what next makes of the old one's
// content, in the first folder that's fit for it. A process that had the old one open goes on
// with that, and disturbs nobody.
func openWitness(o Options, next func(old []byte) [markSize]byte) (*os.File, error) {
	name, err := witnessName(o.Dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range witnessDirs(o.Runtime) {
		f, err := replaceWitness(dir, name, next)
		if err == nil {
			return f, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// witnessName is by the folder's own number, which a copy of it hasn't.
func witnessName(state string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(state, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: state, Err: err}
	}
	return fmt.Sprintf("%x-%x.calls", st.Dev, st.Ino), nil
}

// witnessDirs are the folders that may be fit, the best first: what systemd made for the
// service, the system's usual one, and the one that containers have.
func witnessDirs(given string) []string {
	if given != "" {
		return []string{given}
	}
	var out []string
	if first, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); first != "" {
		out = append(out, first)
	}
	user := os.Geteuid()
	if session := os.Getenv("XDG_RUNTIME_DIR"); user == 0 {
		out = append(out, "/run/drover-agent")
	} else if session != "" {
		out = append(out, filepath.Join(session, "drover-agent"))
	}
	return append(out, fmt.Sprintf("/dev/shm/drover-agent-%d", user))
}

func replaceWitness(dir, name string, next func(old []byte) [markSize]byte) (*os.File, error) {
	root, err := ownMemory(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var old []byte
	if f, err := root.Open(name); err == nil {
		old, _ = io.ReadAll(io.LimitReader(f, markSize+1)) // what can't be read is no mark
		_ = f.Close()
	}
	f, err := root.OpenFile(name+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	mark := next(old)
	// Written once, its space is taken: later writes find it also when no more is left.
	if _, err = f.WriteAt(mark[:], 0); err == nil {
		err = root.Rename(name+".new", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), root.Remove(name+".new"))
	}
	return f, nil
}

// ownMemory opens a folder that's in memory and that nobody else writes to; it's made if it
// isn't there. One on a disk could be put back together with the journal.
func ownMemory(dir string) (*os.Root, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	named, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if err := isOwnMemory(root, named); err != nil {
		return nil, fmt.Errorf("%s %w", dir, errors.Join(err, root.Close()))
	}
	return root, nil
}

func isOwnMemory(root *os.Root, named fs.FileInfo) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	info, err := d.Stat()
	if err != nil {
		return err
	}
	var sys unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &sys); err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !os.SameFile(named, info): // a link
		return errors.New("isn't a folder")
	case !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0:
		return errors.New("is open to others")
	case sys.Type != unix.TMPFS_MAGIC && sys.Type != unix.RAMFS_MAGIC:
		return errors.New("isn't in memory")
	}
	return nil
}
