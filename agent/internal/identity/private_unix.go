//go:build !windows

package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// elevated is how a user becomes one who may use every folder.
const elevated = "as root (begin the line with sudo; what the agent is sent runs as root, too, then)"

// checkPrivate refuses a file or folder that others than its owner may read or write. An
// empty folder holds no key yet: it's made private instead.
func checkPrivate(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := fi.Mode().Perm(); mode&0o077 != 0 {
		if entries, err := os.ReadDir(path); fi.IsDir() && err == nil && len(entries) == 0 {
			return os.Chmod(path, 0o700)
		}
		return fmt.Errorf("%s may be read by others (mode %04o); its key must be considered known to them: enrol again with --replace, or, if nobody else was ever on this host, chmod go-rwx it", path, mode)
	}
	return nil
}

// closeToOthers does nothing: files are made with a mode that keeps others out.
func closeToOthers(string) error { return nil }

// checkOwner refuses to replace what another user's agent keeps at path: that user couldn't
// read what this one writes.
func checkOwner(path string) error {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() {
		return nil
	}
	name := strconv.Itoa(int(st.Uid))
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to the user %s, whose agent couldn't read what another user writes: enrol as that user (as root: runuser -u %s -- drover-agent enroll …)", path, name, name)
}
