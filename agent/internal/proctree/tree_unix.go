//go:build linux || darwin

package proctree

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// proc is one process in the system's table.
type proc struct {
	pid, ppid, pgrp, sid int
	start                uint64 // with pid, names a process uniquely
	dead                 bool   // a zombie
}

// Tree is a command and all that it started. Members are found by their cgroup where there
// are cgroups, and always by parentage, by session and group, and by the mark in their
// environment, so that one which left the session is found too, and one that was moved to
// another cgroup. Without cgroups, one that left the session, lost its parents before the end
// and cleared its environment isn't.
type Tree struct {
	root   int
	start  uint64
	owns   func(env []byte) (ours, others bool)
	keep   map[int]bool // never members
	groups []*group
	known  map[int]proc
}

// Start starts x in a session and, where in has one for it, a cgroup of its own. mark is
// the variable by which members are known, CallMark or JobMark with its value; x has it in its
// environment.
func Start(x *exec.Cmd, mark, _ string, in *Groups) (*Tree, error) {
	newSession(x)
	if x.Env == nil {
		x.Env = os.Environ()
	}
	x.Env = append(x.Env, starterMark+self())
	g := in.give(groupName(mark))
	fresh := *x
	g.hold(x)
	err := x.Start()
	if err != nil && g != nil {
		g.release()
		if g = nil; unfit(err) {
			*x = fresh
			newSession(x)
			err = x.Start()
		}
	}
	if err != nil {
		return nil, err
	}
	t := &Tree{root: x.Process.Pid, owns: owner(mark), known: map[int]proc{}}
	if g != nil {
		t.groups = []*group{g}
	}
	if p, ok := look(t.root); ok {
		t.start = p.start
	}
	return t, nil
}

// groupName names the cgroup of a mark's call or job.
func groupName(mark string) string {
	if id, ok := strings.CutPrefix(mark, CallMark); ok {
		return "call-" + id
	}
	return "job-" + strings.TrimPrefix(mark, JobMark)
}

// KillLeftovers ends, with all that they started, the processes of calls that match, which an
// earlier agent has left running; those of jobs are never touched, nor this process and its
// parents, nor what an agent started that lives: then owned is true. It returns the ids of
// those that are dead now. With none it takes milliseconds, else some seconds at most.
func KillLeftovers(match func(callID string) bool) (killed []int, owned bool) {
	t := &Tree{root: -1, known: map[int]proc{}, keep: map[int]bool{}, groups: deadCalls(match), owns: func(env []byte) (ours, others bool) {
		m := marksIn(env)
		if m.call == "" || m.job != "" || !match(m.call) {
			return false, m.job != ""
		}
		if mayLive(m.starter) {
			owned = true
			return false, true
		}
		return true, false
	}}
	for pid := os.Getpid(); pid > 1 && !t.keep[pid]; {
		t.keep[pid] = true
		p, _ := look(pid)
		pid = p.ppid
	}
	defer t.Release()
	t.sweep()
	found := t.alive()
	if len(found) == 0 {
		return nil, owned
	}
	gone := make(chan struct{})
	close(gone)
	left := t.kill(gone)
	slices.Sort(found)
	return slices.DeleteFunc(found, func(pid int) bool { return slices.Contains(left, pid) }), owned
}

// Release ends the bookkeeping of a command that ended by itself; what it left in the
// background lives on.
func (t *Tree) Release() {
	for _, g := range t.groups {
		g.release()
	}
}

// Kill ends the tree: it's asked to end, then killed, as is what appears meanwhile. The
// processes that are still alive after all are returned. A command that has ended by itself
// isn't touched, nor what it left, and own is true: whoever was stopped or asleep learns of
// its end and of that of its time at once, and the end came first. exited is closed when the
// command was waited for, which goes on meanwhile.
func (t *Tree) Kill(exited <-chan struct{}) (left []int, own bool) {
	if t.over() {
		return nil, true
	}
	t.sweep()
	if t.over() { // looking took its time
		return nil, true
	}
	return t.kill(exited), false
}

func (t *Tree) kill(exited <-chan struct{}) []int {
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
func (t *Tree) await(d time.Duration, kill bool) []int {
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
			for _, g := range t.groups {
				g.kill()
			}
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

// alive lists the members that live. A cgroup's word that it isn't empty counts, too.
func (t *Tree) alive() []int {
	var out []int
	for pid, was := range t.known {
		if p, ok := look(pid); ok && p.start == was.start && !p.dead {
			out = append(out, pid)
		} else if !ok || p.start != was.start {
			delete(t.known, pid)
		}
	}
	for _, g := range t.groups {
		if len(out) == 0 && g.populated() {
			for pid := range g.pids() {
				out = append(out, pid)
			}
		}
	}
	return out
}

// signal sends to each member that lives, to parents before what they started: a script that
// sees its command die goes on to the next one. The process is held (by a pidfd where there is
// one) before its start time is compared, so that a reused id isn't hit.
func (t *Tree) signal(sig syscall.Signal) {
	oldest := slices.SortedFunc(maps.Keys(t.known), func(a, b int) int {
		return cmp.Or(cmp.Compare(t.known[a].start, t.known[b].start), cmp.Compare(a, b))
	})
	for _, pid := range oldest {
		was := t.known[pid]
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
func (t *Tree) sweep() {
	table := processes()
	inside := map[int]bool{}
	for _, g := range t.groups {
		for pid := range g.pids() {
			inside[pid] = true
		}
	}
	rest := make([]proc, 0, len(table))
	for _, p := range table {
		if !t.join(p, inside[p.pid]) {
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

// join tells that p needs no look at its parents; it's added when it's a member.
func (t *Tree) join(p proc, inside bool) bool {
	if p.pid == os.Getpid() || p.pid <= 1 || p.start < t.start || t.keep[p.pid] {
		return true // nothing of ours; not to be looked at again
	}
	if was, ok := t.known[p.pid]; ok && was.start == p.start {
		return true
	}
	ours, others := t.owns(environ(p.pid))
	// The session's id may name a later process once the command is gone; a process of
	// another call or job is never taken for that.
	switch {
	case inside, ours, p.pid == t.root && p.start == t.start, (p.sid == t.root || p.pgrp == t.root) && !others:
		t.known[p.pid] = p
		return true
	}
	return t.root < 0 && others
}

func (t *Tree) childOfMember(p proc, table map[int]proc) bool {
	parent, ok := t.known[p.ppid]
	return ok && table[p.ppid].start == parent.start
}

// owner judges an environment block by a mark: whether it's there, or else one of another
// call or job.
func owner(mark string) func(env []byte) (ours, others bool) {
	return func(env []byte) (ours, others bool) {
		m := marksIn(env)
		if m.job != "" {
			return JobMark+m.job == mark, true
		}
		return m.call != "" && CallMark+m.call == mark, m.call != ""
	}
}

// marks are those of one process; "" where there's none.
type marks struct{ call, job, starter string }

// marksIn finds the marks in an environment block: NAME=value strings that end with NUL.
func marksIn(env []byte) (m marks) {
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(kv, []byte(CallMark)); ok {
			m.call = string(id)
		} else if id, ok := bytes.CutPrefix(kv, []byte(JobMark)); ok {
			m.job = string(id)
		} else if name, ok := bytes.CutPrefix(kv, []byte(starterMark)); ok {
			m.starter = string(name)
		}
	}
	return m
}

// newSession gives a command a session of its own: a group to signal, and no terminal, so
// that programs such as sudo can't ask for a password on the one that the agent was started
// from.
func newSession(x *exec.Cmd) { x.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
