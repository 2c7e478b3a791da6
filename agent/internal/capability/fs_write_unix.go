//go:build linux || darwin

package capability

import (
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/protocol"
)

// keepAttributes gives f the owner, group and extended attributes (access lists and labels
// among them) of the file that it replaces. old is nil when that can't be opened.
func keepAttributes(f, old *os.File, info fs.FileInfo) error {
	st, ok := info.Sys().(*unix.Stat_t)
	if !ok {
		return nil
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		return err
	}
	if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return protocol.Failf(protocol.ReasonEACCES,
				"the file belongs to another user or group (%d:%d), which the agent's user can't keep when it replaces the file; nothing was written", st.Uid, st.Gid)
		}
	}
	if old != nil {
		copyAttributes(int(f.Fd()), int(old.Fd()))
	}
	return nil
}

// copyAttributes copies extended attributes as far as the system allows: those that it
// keeps for itself are set by it. File capabilities vouch for the old content and are left
// out, as on every write.
func copyAttributes(to, from int) {
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(from, list)
	if err != nil {
		return
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if name == "" || name == "security.capability" || name == "security.ima" || name == "security.evm" {
			continue
		}
		if n, err := unix.Fgetxattr(from, name, value); err == nil {
			_ = unix.Fsetxattr(to, name, value[:n], 0)
		}
	}
}
