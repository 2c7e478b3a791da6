package proctree

import (
	"golang.org/x/sys/unix"
)

// zombie is a process that ended and wasn't waited for (SZOMB).
const zombie = 5

// over tells that the command has ended, whether it was waited for yet or not.
func (t *Tree) over() bool {
	p, ok := look(t.root)
	return !ok || p.start != t.start || p.dead
}

// AwaitEnd returns at once: only a wait tells of the end here.
func (t *Tree) AwaitEnd() {}

// processes reads the system's table.
func processes() map[int]proc {
	out := map[int]proc{}
	list, err := unix.SysctlKinfoProcSlice("kern.proc.all")
	if err != nil {
		return out
	}
	for i := range list {
		p := procOf(&list[i])
		out[p.pid] = p
	}
	return out
}

// look reads one process; false when there's none of that id.
func look(pid int) (proc, bool) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(k.Proc.P_pid) != pid {
		return proc{}, false
	}
	return procOf(k), true
}

func procOf(k *unix.KinfoProc) proc {
	pid := int(k.Proc.P_pid)
	sid, err := unix.Getsid(pid)
	if err != nil {
		sid = 0
	}
	at := k.Proc.P_starttime
	return proc{pid: pid, ppid: int(k.Eproc.Ppid), pgrp: int(k.Eproc.Pgid), sid: sid,
		start: uint64(at.Sec)*1_000_000 + uint64(at.Usec), dead: k.Proc.P_stat == zombie}
}

// pidSpace names the space that process ids count in: there's one.
func pidSpace() string { return "" }

// environ reads a process's arguments and environment as it began. The system shows those
// only of processes of the same user, and not of its own: nil then.
func environ(pid int) []byte {
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil {
		return nil
	}
	return b
}
