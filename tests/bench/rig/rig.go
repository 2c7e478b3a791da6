// Package rig builds Drover as it's released and runs it, and what it's compared with, as
// processes of their own.
package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Rig is a folder for one run and the processes that were started in it.
type Rig struct {
	// Dir holds everything; Close removes it.
	Dir string
	// GOGC is given to every Go process, "" for each one's own choice.
	GOGC string
	// Programs is where the programs lie; Build sets it.
	Programs string
	procs    []*Proc
}

// New makes a rig in a fresh folder.
func New() (*Rig, error) {
	dir, err := os.MkdirTemp("", "drover-bench-")
	if err != nil {
		return nil, err
	}
	return &Rig{Dir: dir}, nil
}

// Close ends what still runs, the latest first, and removes the folder.
func (r *Rig) Close() error {
	var errs []error
	for _, p := range slices.Backward(r.procs) {
		errs = append(errs, p.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(r.Dir))...)
}

// Bin is where a built program lies.
func (r *Rig) Bin(name string) string { return filepath.Join(r.Programs, name) }

// Build builds both programs and the bench's own as releases are built.
func (r *Rig) Build() error {
	out := filepath.Join(r.Dir, "bin")
	r.Programs = out
	if err := os.MkdirAll(out, 0o700); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out,
		"./server/cmd/drover", "./agent/cmd/drover-agent", "./tests/bench/cmd/bare", "./tests/bench/cmd/swarm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build (start this in the repository's root): %w\n%s", err, b)
	}
	return nil
}

// Proc is a process whose output goes to a file.
type Proc struct {
	Log  string // the file's path
	cmd  *exec.Cmd
	gone chan struct{}
}

// Start starts a program of the rig, or one by its path.
func (r *Rig) Start(name, program string, args ...string) (*Proc, error) {
	return r.start(name, program, nil, args...)
}

func (r *Rig) start(name, program string, env []string, args ...string) (*Proc, error) {
	if !filepath.IsAbs(program) {
		program = r.Bin(program)
	}
	p := &Proc{Log: filepath.Join(r.Dir, name+".log"), cmd: exec.Command(program, args...), gone: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, r.Dir
	p.cmd.Env = append(withGOGC(os.Environ(), r.GOGC), env...)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = p.cmd.Wait(); close(p.gone) }()
	r.procs = append(r.procs, p)
	return p, nil
}

// withGOGC leaves out what would set the processes, or the locale of the commands they run:
// over SSH a command doesn't get this shell's either.
func withGOGC(env []string, gogc string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"GOGC", "GOMEMLIMIT", "LANG", "LANGUAGE"}, name) || strings.HasPrefix(name, "DROVER_") || strings.HasPrefix(name, "LC_")
	})
	if gogc != "" {
		out = append(out, "GOGC="+gogc)
	}
	return out
}

// Stop asks the process to end, ends it after ten seconds, and waits for it.
func (p *Proc) Stop() error {
	select {
	case <-p.gone:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	select {
	case <-p.gone:
		return nil
	case <-late.C:
	}
	err := p.cmd.Process.Kill()
	<-p.gone
	return err
}

// PID is the process's id.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Await waits until find finds something in what the process has printed.
func (p *Proc) Await(limit time.Duration, find func(log string) string) (string, error) {
	deadline := time.Now().Add(limit)
	for {
		b, err := os.ReadFile(p.Log)
		if err != nil {
			return "", err
		}
		if s := find(string(b)); s != "" {
			return s, nil
		}
		select {
		case <-p.gone:
			return "", fmt.Errorf("%s ended: %s", p.cmd.Path, lastLines(b))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%s wasn't ready within %s: %s", p.cmd.Path, limit, lastLines(b))
		}
	}
}

func lastLines(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// RSS is the resident memory of the process, in bytes.
func (p *Proc) RSS() (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("the system doesn't tell a process's resident memory (VmRSS)")
}

// CPU is the processor time that the process has used, in user and in system mode. The
// system counts it in hundredths of a second.
func (p *Proc) CPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 13 {
		return 0, errors.New("the system doesn't tell a process's processor time")
	}
	user, err1 := strconv.ParseInt(string(f[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// Size is a program's size in bytes.
func (r *Rig) Size(name string) (int64, error) {
	fi, err := os.Stat(r.Bin(name))
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
