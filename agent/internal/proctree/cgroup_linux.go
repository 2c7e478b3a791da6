package proctree

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupPrefix begins the name of the cgroup that holds one process's commands; its id and
	// start time follow, so that the next agent knows whether it's gone.
	groupPrefix = "drover-"
	// sweepEvery and sweepMost bound what looking at cgroups that were left populated costs.
	sweepEvery = 5 * time.Second
	sweepMost  = 64
)

// Groups gives each command a cgroup of its own, in which it's found whatever it does to its
// session, parents and environment. No controller is enabled, so that nothing is limited and
// the agent may share the parent. A nil *Groups gives none.
type Groups struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex
	left  []string // the command ended while something in it lives on
	swept time.Time
	// releasing are cgroups that are being removed: nobody's answer waits for that.
	releasing sync.WaitGroup
}

// FindGroups tries whether this process can start commands in cgroups below its own, and
// tidies up after agents that are gone. The error says why it can't.
func FindGroups(log *slog.Logger) (*Groups, error) {
	own, err := ownGroup()
	if err != nil {
		return nil, err
	}
	me, ok := look(os.Getpid())
	if !ok {
		return nil, errors.New("/proc can't be read")
	}
	g := &Groups{log: log, dir: filepath.Join(own, fmt.Sprintf("%s%d-%d-%s", groupPrefix, me.pid, me.start, strings.ToLower(rand.Text()[:6])))}
	for _, dir := range deadGroups(own) {
		g.left = append(g.left, append(below(dir), dir)...)
	}
	if err := g.try(); err != nil {
		g.releasing.Wait()
		_ = os.Remove(g.dir)
		return nil, err
	}
	g.sweep(0)
	return g, nil
}

// try starts what can't be started in a cgroup: when it's the program that fails, the
// kernel and its rules let processes begin there.
func (g *Groups) try() error {
	in, err := g.make("try")
	if err != nil {
		return err
	}
	defer in.release()
	attr := &os.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(in.file.Fd())}}
	p, err := os.StartProcess(filepath.Join(in.dir, "no-program"), []string{"no-program"}, attr)
	if err == nil {
		_, _ = p.Wait()
		return errors.New("a program was found in a cgroup")
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start in a cgroup: %w", err)
	}
	return nil
}

// ownGroup is the folder of this process's own cgroup (version 2, alone or beside version 1).
func ownGroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	own := ""
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = strings.TrimSuffix(path, "\n")
		}
	}
	if b, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 10 || !strings.Contains(line, " - cgroup2 ") {
			continue
		}
		// The mount shows the tree from f[3] on; a container may see only a part of it.
		rel, ok := own, true
		if f[3] != "/" {
			rel, ok = strings.CutPrefix(own, f[3])
		}
		if ok && (rel == "" || rel[0] == '/') && !strings.Contains(rel, "/..") {
			return filepath.Join(f[4], rel), nil
		}
	}
	return "", errors.New("cgroup version 2 isn't mounted")
}

// deadGroups are the folders of agents' commands under own whose agent is gone.
func deadGroups(own string) []string {
	var out []string
	list, _ := filepath.Glob(filepath.Join(own, groupPrefix+"*-*-*"))
	for _, dir := range list {
		f := strings.Split(strings.TrimPrefix(filepath.Base(dir), groupPrefix), "-")
		pid, err1 := strconv.Atoi(f[0])
		start, err2 := strconv.ParseUint(f[1], 10, 64)
		if p, ok := look(pid); err1 == nil && err2 == nil && (!ok || p.start != start) {
			out = append(out, dir)
		}
	}
	return out
}

// below lists the folders under dir, innermost first.
func below(dir string) []string {
	var out []string
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if e.IsDir() {
			sub := filepath.Join(dir, e.Name())
			out = append(append(out, below(sub)...), sub)
		}
	}
	return out
}

// give makes a cgroup with that name. Where it can't be had, for example because there are
// too many, the command does without: that's no reason to refuse it.
func (g *Groups) give(name string) *group {
	if g == nil {
		return nil
	}
	g.sweep(sweepEvery)
	in, err := g.make(name)
	if err != nil {
		g.log.Warn("a command gets no cgroup; it's found by parents, session and environment alone", "name", name, "err", err)
		return nil
	}
	return in
}

func (g *Groups) make(name string) (*group, error) {
	for _, c := range name {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return nil, errors.New("the call id doesn't fit a cgroup's name")
		}
	}
	in := &group{all: g, dir: filepath.Join(g.dir, name)}
	err := os.Mkdir(in.dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Mkdir(g.dir, 0o755)
		err = os.Mkdir(in.dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	if in.file, err = os.OpenFile(in.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		_ = os.Remove(in.dir)
		return nil, err
	}
	return in, nil
}

// sweep removes cgroups that are empty by now, at most so often.
func (g *Groups) sweep(every time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.left) == 0 || time.Since(g.swept) < every {
		return
	}
	g.swept = time.Now()
	n := min(len(g.left), sweepMost)
	var still []string
	for _, dir := range g.left[:n] {
		if !remove(dir) {
			still = append(still, dir)
		}
	}
	g.left = append(g.left[n:], still...)
}

// remove removes a cgroup with what a command made in it; false when a process is in there.
func remove(dir string) bool {
	if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	for _, sub := range below(dir) {
		_ = os.Remove(sub)
	}
	return os.Remove(dir) == nil
}

// Close removes what's empty. Cgroups in which something lives on stay for the next agent.
func (g *Groups) Close() {
	if g == nil {
		return
	}
	g.releasing.Wait()
	g.sweep(0)
	_ = os.Remove(g.dir)
}

// group is one command's cgroup. A nil *group is an empty one.
type group struct {
	all  *Groups // nil for one of a dead agent
	dir  string
	file *os.File // nil for one of a dead agent
}

// hold makes x begin in the cgroup.
func (in *group) hold(x *exec.Cmd) {
	if in != nil {
		x.SysProcAttr.UseCgroupFD, x.SysProcAttr.CgroupFD = true, int(in.file.Fd())
	}
}

// unfit tells whether a start failed because of the cgroup and not because of the program:
// these are no errors of exec.
func unfit(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EOPNOTSUPP, syscall.ENODEV, syscall.ENOSYS, syscall.EBADF, syscall.EINVAL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// release gives the cgroup up: it's removed soon or, while something in it lives, later.
func (in *group) release() {
	switch {
	case in == nil:
	case in.all == nil:
		in.remove()
	default:
		in.all.releasing.Go(in.remove)
	}
}

func (in *group) remove() {
	if in.file != nil {
		_ = in.file.Close()
	}
	if err := os.Remove(in.dir); err != nil && !errors.Is(err, fs.ErrNotExist) && in.all != nil {
		in.all.mu.Lock()
		in.all.left = append(in.all.left, in.dir)
		in.all.mu.Unlock()
	}
}

// pids lists the processes in it, also in cgroups that they made.
func (in *group) pids() map[int]bool {
	if in == nil {
		return nil
	}
	out := map[int]bool{}
	for _, dir := range append(below(in.dir), in.dir) {
		b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for line := range bytes.Lines(b) {
			if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil {
				out[pid] = true
			}
		}
	}
	return out
}

// populated tells whether a process that isn't a zombie is in it.
func (in *group) populated() bool {
	if in == nil {
		return false
	}
	b, err := os.ReadFile(filepath.Join(in.dir, "cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

// kill kills all that's in it at once, also what is being forked. Kernels before 5.14 can't;
// there the processes are killed one by one.
func (in *group) kill() {
	if in != nil {
		_ = os.WriteFile(filepath.Join(in.dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// deadCalls are the cgroups of calls that match, left by agents that are gone.
func deadCalls(match func(callID string) bool) []*group {
	own, err := ownGroup()
	if err != nil {
		return nil
	}
	var out []*group
	for _, dead := range deadGroups(own) {
		list, _ := filepath.Glob(filepath.Join(dead, "call-*"))
		for _, dir := range list {
			if match(strings.TrimPrefix(filepath.Base(dir), "call-")) {
				out = append(out, &group{dir: dir})
			}
		}
	}
	return out
}
