//go:build !windows

package capability

import (
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
)

// openFlags keep an open from blocking and from taking a terminal.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOCTTY

// owners finds names of users and groups, each once.
type owners struct{ users, groups map[uint32]string }

// of names a file's owner and group; by number where there's no name.
func (o *owners) of(info fs.FileInfo) (owner, group string) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", ""
	}
	if o.users == nil {
		o.users, o.groups = map[uint32]string{}, map[uint32]string{}
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
