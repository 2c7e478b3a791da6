//go:build linux || darwin

package capability

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// proc is one process in the system's table.
type proc struct {
	pid, ppid, pgrp, sid int
	start                uint64 // with pid, names a process uniquely
	dead                 bool   // a zombie
}

// tree is a command and all that it started. Members are found by parentage, by session
// and group, and by the call id in their environment, so that one which left the session
// is found too; one that left it, lost its parents before the end and cleared its
// environment isn't.
type tree struct {
	root   int
	start  uint64
	callID string
	known  map[int]proc
}

func startTree(x *exec.Cmd, callID, _ string) (*tree, error) {
	newSession(x)
	if err := x.Start(); err != nil {
		return nil, err
	}
	t := &tree{root: x.Process.Pid, callID: callID, known: map[int]proc{}}
	if p, ok := look(t.root); ok {
		t.start = p.start
	}
	return t, nil
}

// release ends the bookkeeping of a command that ended by itself; what it left in the
// background lives on.
func (t *tree) release() {}

// kill ends the tree: it's asked to end, then killed, as is what appears meanwhile. The
// processes that are still alive after all are returned.
func (t *tree) kill(exited <-chan struct{}) []int {
	t.sweep()
	t.signal(syscall.SIGTERM)
	t.await(termGrace, false)
	t.sweep()
	left := t.await(killWait, true)
	if len(left) == 0 {
		timer := time.NewTimer(killWait)
		defer timer.Stop()
		select {
		case <-exited:
		case <-timer.C:
		}
	}
	return left
}

// await waits until no member lives, at most d. With kill, the living are killed and new
// ones are looked for on the way.
func (t *tree) await(d time.Duration, kill bool) []int {
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := t.alive()
		if len(left) == 0 {
			if !kill {
				return nil
			}
			if t.sweep(); len(t.alive()) == 0 {
				return nil
			}
		}
		if kill {
			t.signal(syscall.SIGKILL)
		}
		select {
		case <-end.C:
			return t.alive()
		case <-tick.C:
			if kill {
				t.sweep()
			}
		}
	}
}

// alive lists the members that live.
func (t *tree) alive() []int {
	var out []int
	for pid, was := range t.known {
		if p, ok := look(pid); ok && p.start == was.start && !p.dead {
			out = append(out, pid)
		} else if !ok || p.start != was.start {
			delete(t.known, pid)
		}
	}
	return out
}

// signal sends to each member that lives. The process is held (by a pidfd where there is
// one) before its start time is compared, so that a reused id isn't hit.
func (t *tree) signal(sig syscall.Signal) {
	for pid, was := range t.known {
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		if is, ok := look(pid); ok && is.start == was.start {
			_ = p.Signal(sig)
		}
		_ = p.Release()
	}
}

// sweep adds to the known members those that the system's table shows now.
func (t *tree) sweep() {
	table := processes()
	rest := make([]proc, 0, len(table))
	for _, p := range table {
		if !t.join(p) {
			rest = append(rest, p)
		}
	}
	for again := true; again; {
		again = false
		rest2 := rest[:0]
		for _, p := range rest {
			if t.childOfMember(p, table) {
				t.known[p.pid] = p
				again = true
			} else {
				rest2 = append(rest2, p)
			}
		}
		rest = rest2
	}
}

// join adds p when it's a member by itself, without regard to its parents.
func (t *tree) join(p proc) bool {
	if p.pid == os.Getpid() || p.pid <= 1 || p.start < t.start {
		return true // nothing of ours; not to be looked at again
	}
	if was, ok := t.known[p.pid]; ok && was.start == p.start {
		return true
	}
	ours, others := marked(p.pid, t.callID)
	// The session's id may name a later process once the command is gone; a process of
	// another call is never taken.
	if p.pid == t.root && p.start == t.start || ours || (p.sid == t.root || p.pgrp == t.root) && !others {
		t.known[p.pid] = p
		return true
	}
	return false
}

func (t *tree) childOfMember(p proc, table map[int]proc) bool {
	parent, ok := t.known[p.ppid]
	return ok && table[p.ppid].start == parent.start
}

// marks looks for call ids in an environment block: NAME=value strings that end with NUL.
func marks(block []byte, callID string) (ours, others bool) {
	for kv := range bytes.SplitSeq(block, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte("DROVER_CALL_ID=")); ok {
			if string(id) == callID {
				return true, false
			}
			others = true
		}
	}
	return false, others
}
