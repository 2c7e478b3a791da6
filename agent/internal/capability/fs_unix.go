//go:build !windows

package capability

import (
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openFlags keep an open from blocking and from taking a terminal.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOCTTY

// inodeOf is the number of an open file in its file system.
func inodeOf(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// private tells whether an open file is this agent's own alone: nobody else can have put it
// there, or has it under another name.
func private(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode().IsRegular() && int(st.Uid) == os.Geteuid() && st.Nlink == 1
}

// nameLife is how long names of users and groups are remembered: finding one reads a file
// of the system, or asks it.
const nameLife = 30 * time.Second

// owners finds names of users and groups.
type owners struct {
	mu            sync.Mutex
	users, groups map[uint32]string
	until         time.Time // when they're looked up anew
}

// of names a file's owner and group; by number where there's no name.
func (o *owners) of(info fs.FileInfo) (owner, group string) {
	st, ok := info.Sys().(*unix.Stat_t)
	if !ok {
		return "", ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.After(o.until) || len(o.users)+len(o.groups) > 4096 {
		o.users, o.groups, o.until = map[uint32]string{}, map[uint32]string{}, now.Add(nameLife)
	}
	owner, ok = o.users[st.Uid]
	if !ok {
		owner = strconv.FormatUint(uint64(st.Uid), 10)
		if u, err := user.LookupId(owner); err == nil {
			owner = u.Username
		}
		o.users[st.Uid] = owner
	}
	group, ok = o.groups[st.Gid]
	if !ok {
		group = strconv.FormatUint(uint64(st.Gid), 10)
		if g, err := user.LookupGroupId(group); err == nil {
			group = g.Name
		}
		o.groups[st.Gid] = group
	}
	return owner, group
}
