//go:build unix

package main

import (
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// checkOwner refuses root on data that belongs to another user: files that root makes
// there would be closed to the server.
func checkOwner(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil // what can't be looked at is reported by what opens it
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 {
		return nil
	}
	name := "#" + strconv.FormatUint(uint64(st.Uid), 10)
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fleet.Errorf(protocol.CodeDenied, "%s belongs to the user %s, and files that root makes there would be closed to the server; run this as that user: sudo -u %s drover …, or use --url", dir, name, name)
}

// own tells whether an open file is this user's own alone: no other user can have put it
// there.
func own(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && st.Nlink == 1
}
