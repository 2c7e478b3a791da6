//go:build !windows

package identity

import (
	"fmt"
	"os"
)

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
