package capability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/agent/internal/spool"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/fault"
)

const (
	// pipeWait is how long output is awaited after the command has ended, for what's still
	// in the pipe. A background child that holds the pipe doesn't hold the call.
	pipeWait = 250 * time.Millisecond
	// catchUp bounds how much longer what was in the pipe at that moment is awaited: on a busy
	// host the readers may not have had their turn. A background child may write for ever.
	catchUp = 3 * time.Second
	// defaultTimeout is a command's time when the caller gives none.
	defaultTimeout = 120 * time.Second
)

// command is what to start. Nothing in it passes through a shell on its way.
type command struct {
	path    string   // the program, absolute
	argv    []string // with argv[0]
	line    string   // on Windows the exact command line instead of argv; "" elsewhere
	dir     string
	home    bool // dir is where commands run when the caller names no folder
	env     []string
	stdin   string
	timeout time.Duration
	limit   int // bytes of output over both streams
}

// findGroups decides once how commands and what they start are found when they must die.
func (h *Host) findGroups() {
	var err error
	if h.groups, err = proctree.FindGroups(h.Log); runtime.GOOS == "windows" {
		h.Log.Info("each command gets a job object of its own")
		return
	} else if err != nil {
		h.Log.Info("commands get no cgroup of their own: what they start is found by parents, session and environment", "why", err)
		return
	}
	h.Log.Info("each command gets a cgroup of its own")
}

// openSpool opens where full outputs are kept. Without it commands work as well.
func (h *Host) openSpool() {
	if h.Output == "" {
		return
	}
	var err error
	if h.spool, err = spool.Open(h.Output, h.OutputLimits, h.Log); err != nil {
		h.Log.Warn("full outputs can't be kept on this host", "err", err)
	}
}

// Close gives back what Bind took. Calls have ended; what they left in the background lives on.
func (h *Host) Close() {
	h.groups.Close()
	h.spool.Close()
}

// runProcess runs a command to its end, or to that of ctx or its timeout: then its whole
// tree is dead when this returns, or named in left_behind.
func (h *Host) runProcess(ctx context.Context, c *run.Call, cmd command) (capability.ProcessOut, error) {
	out := capability.ProcessOut{ExitCode: -1}
	if err := h.checkDir(cmd); err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmd.timeout, run.ErrDeadline)
	defer cancel()
	std, err := newPipes(cmd.limit, cmd.stdin, h.spool.Begin(c.ID, c.Caller))
	if err != nil {
		return out, h.sysError(err, cmd.argv[0], "can't be started")
	}
	x := &exec.Cmd{Path: cmd.path, Args: cmd.argv, Env: cmd.env, Dir: cmd.dir, Stdin: std.childIn, Stdout: std.childOut, Stderr: std.childErr}
	began := time.Now()
	tree, err := proctree.Start(x, proctree.CallMark+c.ID, cmd.line, h.groups)
	std.started(err == nil)
	if err != nil {
		return out, h.notStarted(err, cmd)
	}
	out.PID = x.Process.Pid
	c.Started(out.PID)
	c.Latest(std.latest)
	exited := make(chan struct{})
	var broke *fault.Panic
	go func() {
		defer close(exited)
		defer fault.Catch(func(p *fault.Panic) { broke = p })
		tree.AwaitEnd()
		_ = x.Wait()
	}()
	ended := false
	select {
	case <-exited:
	case <-ctx.Done():
		left, own := tree.Kill(exited)
		if out.Left = left; own {
			<-exited
		}
		ended = !own
	}
	out.DurationMS = time.Since(began).Milliseconds()
	if !ended && broke != nil { // what became of the command isn't known
		tree.Kill(exited)
		panic(broke)
	}
	tree.Release()
	std.finish(&out, cmd.limit)
	if ended {
		return out, killed(ctx, out, cmd.timeout)
	}
	return out, exitOf(x.ProcessState, &out)
}

// killed says why a command was ended. Cancelled and timed out mean that all of it is dead;
// with a process left that could not be killed, nobody knows how it ends.
func killed(ctx context.Context, out capability.ProcessOut, timeout time.Duration) error {
	err := run.Ended(ctx, "the command and everything it started were killed")
	if err.Code == protocol.CodeTimedOut {
		err.Message += "; what it printed until then is kept (raise timeout_seconds, here " + timeout.String() + ", for longer work)"
	}
	if len(out.Left) > 0 {
		err = run.Ended(ctx, fmt.Sprintf("but of what it had started these processes could not be killed and may go on: %v. Look on the host (ps -fp)", out.Left))
		err.Code, err.Reason = protocol.CodeOutcomeUnknown, "left_behind"
	}
	return err
}

// pipes connects a command's standard streams. The captures go on draining after the call
// was answered, until the last process that holds the pipe closes it, so that a background
// child isn't hurt.
type pipes struct {
	childIn, childOut, childErr *os.File // ends that the child inherits
	in, out, err                *os.File // our ends; in is nil for an empty stdin
	stdin                       string
	stdout, stderr              *stream
	full                        *spool.Call // what doesn't fit the answer
	drained                     chan struct{}
	unfed                       atomic.Pointer[fault.Panic] // the writing of stdin failed inside
}

func newPipes(limit int, stdin string, full *spool.Call) (p *pipes, err error) {
	p = &pipes{stdin: stdin, full: full, drained: make(chan struct{}),
		stdout: newStream(limit, func(b []byte) { full.Write(spool.Stdout, b) }),
		stderr: newStream(limit, func(b []byte) { full.Write(spool.Stderr, b) })}
	defer func() {
		if err != nil {
			p.close(p.childIn, p.childOut, p.childErr, p.in, p.out, p.err)
		}
	}()
	if stdin == "" {
		p.childIn, err = noInput()
	} else {
		p.childIn, p.in, err = os.Pipe()
	}
	if err != nil {
		return p, err
	}
	if p.out, p.childOut, err = outPipe(); err != nil {
		return p, err
	}
	p.err, p.childErr, err = outPipe()
	return p, err
}

func (p *pipes) close(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// started closes the child's ends and begins to serve ours.
func (p *pipes) started(ok bool) {
	p.close(p.childIn, p.childOut, p.childErr)
	if !ok {
		p.close(p.in, p.out, p.err)
		return
	}
	if p.in != nil {
		go p.feed(p.in)
	}
	second := make(chan struct{})
	go func() { p.stderr.drain(p.err); p.close(p.err); close(second) }()
	go func() { p.stdout.drain(p.out); p.close(p.out); <-second; close(p.drained) }()
}

// feed writes a command's input. After a panic there nobody knows what the command was given.
func (p *pipes) feed(in io.WriteCloser) {
	defer in.Close()
	defer fault.Catch(func(broke *fault.Panic) { p.unfed.Store(broke) })
	_, _ = io.WriteString(in, p.stdin) // a program may leave its input unread
}

// latest is the newest line of either stream; standard output first.
func (p *pipes) latest() string {
	if line := p.stdout.last(); line != "" {
		return line
	}
	return p.stderr.last()
}

// finish waits shortly for what's still in the pipes and writes the output down.
func (p *pipes) finish(out *capability.ProcessOut, limit int) {
	wait := time.NewTimer(pipeWait)
	defer wait.Stop()
	select {
	case <-p.drained:
	case <-wait.C:
		p.catchUp()
	}
	if p.in != nil {
		// Ends a writer whose pipe is held, unread, by a background child.
		_ = p.in.SetDeadline(time.Now())
	}
	a, b := p.stdout.take(), p.stderr.take()
	if broke := cmp.Or(a.broke, b.broke, p.unfed.Load()); broke != nil { // what it printed, or was given, isn't known
		panic(broke)
	}
	out.StdoutBytes, out.StderrBytes = a.total, b.total
	out.Stdout, out.Stderr, out.Truncated, out.Invalid = texts(a, b, limit)
	if out.Truncated {
		// What is held here whole was too much together with the other, or when written as text.
		if a.whole {
			p.full.Write(spool.Stdout, a.head)
		}
		if b.whole {
			p.full.Write(spool.Stderr, b.head)
		}
	}
	kept, whole := p.full.End()
	out.Kept, out.KeptPartly = kept, kept && !whole
}

// catchUp waits until the pipes are empty, whoever holds them: twice in a row, since what was
// read last may not be written down yet.
func (p *pipes) catchUp() {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	most := time.NewTimer(catchUp)
	defer most.Stop()
	for empty := 0; empty < 2; {
		if empty++; pending(p.out) || pending(p.err) {
			empty = 0
		}
		select {
		case <-p.drained:
			return
		case <-most.C:
			return
		case <-look.C:
		}
	}
}

// checkDir tells early, and apart from the program, that the folder to run in is amiss.
func (h *Host) checkDir(cmd command) error {
	what := "can't be the command's folder (cwd)"
	if cmd.home {
		what = "is the home of the agent's user, where a command runs when it isn't given cwd, and can't be used; name another folder in cwd"
	}
	info, err := os.Stat(cmd.dir)
	if err != nil {
		return h.sysError(err, guard.Escape(cmd.dir), what)
	}
	if !info.IsDir() {
		return protocol.Failf(protocol.ReasonENOTDIR, "%s %s: it isn't a folder", guard.Shown(cmd.dir), what)
	}
	if _, err := os.Stat(cmd.dir + string(filepath.Separator) + "."); err != nil { // it can't be entered
		return h.sysError(err, guard.Escape(cmd.dir), what)
	}
	return nil
}

// notStarted explains why the program didn't start.
func (h *Host) notStarted(err error, cmd command) error {
	reason, _ := explain(err)
	name := guard.Shown(cmd.argv[0])
	switch reason {
	case protocol.ReasonENOENT:
		return protocol.Failf(reason, "%s was not found, or the interpreter that its first line names; nothing was started", name)
	case protocol.ReasonEACCES:
		return protocol.Failf(reason, "%s can't be executed by the agent's user (%s); nothing was started", name, h.RunAs)
	case "e2big":
		return protocol.Failf(reason, "the arguments and environment of %s are longer than the system takes; nothing was started. Use stdin or a file", name)
	case "enoexec":
		return protocol.Failf(reason, "%s isn't a program of this system; nothing was started. A script needs a first line such as #!/bin/sh", name)
	}
	return h.sysError(err, guard.Escape(cmd.argv[0]), "can't be started")
}

// lookProgram finds a program by name in the PATH that the command itself will see.
func lookProgram(name, dir string, env []string) (string, error) {
	if strings.ContainsRune(name, 0) || name == "" {
		return "", protocol.Errorf(protocol.CodeBadArgs, "argv[0] is empty or holds a NUL byte; it must name a program")
	}
	if strings.ContainsAny(name, slashes) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return programAt(name, env)
	}
	var denied error
	for _, p := range filepath.SplitList(variable(env, "PATH")) {
		if !filepath.IsAbs(p) {
			continue
		}
		found, err := programAt(filepath.Join(p, name), env)
		if err == nil {
			return found, nil
		}
		if errors.Is(err, os.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &os.PathError{Op: "exec", Path: name, Err: os.ErrNotExist}
}

func variable(env []string, name string) string {
	for _, kv := range env {
		if n, v, _ := strings.Cut(kv, "="); n == name || caseless && strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}
