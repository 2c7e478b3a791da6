package guard

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// searchFlags open a folder to go through it, for which its x bit is enough.
const searchFlags = unix.O_PATH

// misleads tells whether what a link says isn't where it leads: those of /proc (cwd, root,
// exe, fd/…) lead to an open file itself, which may lie in another root or mount namespace
// or be deleted. They are never followed, only read; read, such a one would name a wrong file.
func (f *folder) misleads(name, target string) bool {
	var sys unix.Statfs_t
	if !filepath.IsAbs(target) || unix.Fstatfs(f.fd, &sys) != nil || sys.Type != unix.PROC_SUPER_MAGIC {
		return false
	}
	var leads, says unix.Stat_t
	return unix.Fstatat(f.fd, name, &leads, 0) != nil || unix.Stat(target, &says) != nil || idOf(&leads) != idOf(&says)
}
