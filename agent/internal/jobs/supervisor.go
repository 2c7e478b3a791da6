package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol/strict"
)

const (
	// maxSpec bounds what a supervisor reads: a call's arguments, written in base64.
	maxSpec = 16 << 20
	// lookEvery is how often a supervisor looks for an order to end its job.
	lookEvery = 250 * time.Millisecond
	// tellEvery is how often it says how much was dropped.
	tellEvery = 2 * time.Second
	// lockTime is how long a supervisor waits for its lock, which a manager may hold for an
	// instant to see whether it's free.
	lockTime = 5 * time.Second
	// endGrace is how long a job has to end when its time is over or the system shuts down.
	endGrace = 10 * time.Second
	// catchTime bounds the waiting for a slow disk to take the last output.
	catchTime = 30 * time.Second
	// writeTime is how long a supervisor tries to write down the end on a full disk.
	writeTime = time.Minute
)

// spec is a supervisor's task, given on its standard input. What may not be text is bytes.
type spec struct {
	JobID     string   `json:"job_id"`
	Dir       string   `json:"dir"` // the job's folder
	Path      []byte   `json:"path"`
	Argv      [][]byte `json:"argv"`
	Line      []byte   `json:"line"`
	Cwd       []byte   `json:"cwd"`
	Env       [][]byte `json:"env"`
	Stdin     []byte   `json:"stdin"`
	TimeoutMS int64    `json:"timeout_ms"`
	Quota     int64    `json:"quota"`
	Held      bool     `json:"held"` // the lock was inherited
}

// report is what a supervisor says on its standard output, once: the program runs, or why
// it doesn't.
type report struct {
	PID     int       `json:"pid,omitzero"`
	At      time.Time `json:"at,omitzero"`
	Errno   int       `json:"errno,omitzero"`
	Message string    `json:"message,omitempty"`
}

// supervisor runs one job.
type supervisor struct {
	spec  spec
	procs Processes
	tree  Tree
	began began

	stdout, stderr *drain
	exited         chan struct{} // closed when the program was waited for
	state          *os.ProcessState
}

// Supervise runs the job that in describes, to its end. It says on out, which it closes, that
// the program runs or why it doesn't. When ctx ends, so does the job. It returns after the
// last process that holds the program's output has closed it. The error is one of the
// supervisor itself; it's in the report, too, if that wasn't made yet.
func Supervise(ctx context.Context, in io.Reader, out io.WriteCloser, procs Processes) error {
	// An agent that's gone doesn't hear the report: without this, writing it would end this
	// process, as out is its standard output. Ignoring the signal would be inherited by the program.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s := &supervisor{procs: procs, exited: make(chan struct{})}
	err := s.prepare(in)
	var held *os.File
	if err == nil {
		held, err = s.hold()
	}
	if err == nil {
		err = s.start()
	}
	rep := report{PID: s.began.PID, At: s.began.At}
	if err != nil {
		rep = report{Message: err.Error()}
		if errno := syscall.Errno(0); errors.As(err, &errno) {
			rep.Errno = int(errno)
		}
		if held != nil {
			err = s.write(end{State: Failed, Detail: "it couldn't be started: " + err.Error(), At: time.Now().UTC(), Never: s.began.PID == 0})
		}
	}
	b, jerr := json.Marshal(rep)
	if jerr == nil {
		if _, werr := out.Write(b); werr != nil && rep.PID != 0 {
			fmt.Fprintln(os.Stderr, "the agent was gone when the program had started:", werr) // and the job runs on
		}
	}
	_ = out.Close()
	if held == nil || rep.PID == 0 {
		return err
	}
	err = s.write(s.run(ctx))
	_ = held.Close()
	s.tree.Release()
	<-s.stdout.over
	<-s.stderr.over
	return errors.Join(err, jerr)
}

func (s *supervisor) prepare(in io.Reader) error {
	b, err := io.ReadAll(io.LimitReader(in, maxSpec+1))
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if f, ok := in.(*os.File); ok {
		_ = f.Truncate(0) // a file in memory could be read by others of this user for as long as it's open; a pipe can't be cut
	}
	if err := strict.Unmarshal(b, &s.spec, strict.Limits{MaxBytes: maxSpec}); err != nil {
		return fmt.Errorf("read the job: %w; was the agent's program replaced while it ran? Restart the agent", err)
	}
	// It was started in the job's folder, which it finds there also when the state folder is
	// moved or renamed.
	if here, err := os.Stat("."); err == nil {
		if named, err := os.Stat(s.spec.Dir); err == nil && os.SameFile(here, named) {
			s.spec.Dir = "."
		}
	}
	return nil
}

// hold takes the job's lock. A job that somebody has written off already doesn't start.
func (s *supervisor) hold() (*os.File, error) {
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for begin := time.Now(); ; <-retry.C {
		f, err := s.lock()
		if err != nil {
			return nil, fmt.Errorf("the job's folder: %w", err)
		}
		if f == nil {
			if time.Since(begin) > lockTime {
				return nil, errors.New("the job has a supervisor already")
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(s.spec.Dir, endFile)); err == nil {
			return nil, errors.Join(errors.New("the job has ended already"), f.Close())
		}
		return f, nil
	}
}

// lock takes the job's lock, or what was inherited of it.
func (s *supervisor) lock() (*os.File, error) {
	if s.spec.Held {
		return inherited()
	}
	return lock(s.spec.Dir)
}

// start starts the program and writes that down.
func (s *supervisor) start() error {
	if err := os.WriteFile(filepath.Join(s.spec.Dir, spareFile), make([]byte, 8<<10), 0o600); err != nil {
		return fmt.Errorf("the job's folder: %w", err)
	}
	ends, err := s.pipes()
	defer func() {
		for _, f := range ends {
			_ = f.Close()
		}
	}()
	if err != nil {
		return err
	}
	x := &exec.Cmd{Path: string(s.spec.Path), Args: texts(s.spec.Argv), Env: texts(s.spec.Env), Dir: string(s.spec.Cwd),
		Stdin: ends[0], Stdout: ends[1], Stderr: ends[2]}
	if s.tree, err = s.procs.Start(x, s.spec.JobID, string(s.spec.Line)); err != nil {
		return err
	}
	s.began = began{PID: x.Process.Pid, Start: s.tree.Start(), At: time.Now().UTC(), By: s.tree.Supervisor()}
	go func() {
		_ = x.Wait() // the state says how it ended
		s.state = x.ProcessState
		close(s.exited)
	}()
	// Without it the job is found by its mark alone; that's no reason to end it.
	if err := writeFile(s.spec.Dir, beganFile, s.began); err != nil {
		fmt.Fprintln(os.Stderr, "the start could not be written down:", err)
	}
	return nil
}

// pipes makes the program's standard streams and begins to serve this end of them. It returns
// the program's ends, as far as they were made.
func (s *supervisor) pipes() (ends []*os.File, err error) {
	var in *os.File
	if len(s.spec.Stdin) == 0 {
		in, err = os.Open(os.DevNull)
		ends = append(ends, in)
	} else {
		var w *os.File
		if in, w, err = os.Pipe(); err == nil {
			ends = append(ends, in)
			go func() {
				_, _ = w.Write(s.spec.Stdin) // a program may leave its input unread
				_ = w.Close()
			}()
		}
	}
	quota := &room{left: s.spec.Quota}
	for _, name := range []string{Stdout, Stderr} {
		var r, w *os.File
		if err == nil {
			r, w, err = os.Pipe()
		}
		if err != nil {
			break
		}
		ends = append(ends, w)
		var d *drain
		if d, err = newDrain(s.spec.Dir, name, r, quota); err != nil {
			break
		}
		go d.run()
		if name == Stdout {
			s.stdout = d
		} else {
			s.stderr = d
		}
	}
	return ends, err
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// run waits for the job's end, brings it about where it's asked for, and says how it was.
func (s *supervisor) run(ctx context.Context) end {
	timeout := time.NewTimer(time.Duration(s.spec.TimeoutMS) * time.Millisecond)
	defer timeout.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var told sizes
	var at time.Time
	for {
		select {
		case <-s.exited:
			return s.ended("", nil)
		case <-timeout.C:
			return s.stop(stopOrder{Signal: "TERM", GraceMS: endGrace.Milliseconds(),
				Reason: "its time limit of " + (time.Duration(s.spec.TimeoutMS) * time.Millisecond).String() + " passed"})
		case <-ctx.Done():
			return s.stop(stopOrder{Signal: "TERM", GraceMS: endGrace.Milliseconds(), Reason: "its supervisor was told to end, as by a shutdown of the host"})
		case <-tick.C:
		}
		if order, ok := s.order(); ok {
			return s.stop(order)
		}
		if now := s.sizes(); now != told && now.Stdout.Dropped+now.Stderr.Dropped > 0 && time.Since(at) > tellEvery {
			_ = writeFile(s.spec.Dir, sizesFile, now) // shown while it runs, nothing depends on it
			told, at = now, time.Now()
		}
	}
}

func (s *supervisor) sizes() sizes { return sizes{s.stdout.sizes(), s.stderr.sizes()} }

// order reads the manager's order to end, if there is one.
func (s *supervisor) order() (o stopOrder, ok bool) {
	ok, err := readFile(s.spec.Dir, stopFile, &o)
	return o, ok && err == nil
}

// stop ends the job. A later order to kill cuts the grace short.
func (s *supervisor) stop(o stopOrder) end {
	hurry, over := make(chan struct{}), make(chan struct{})
	go func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			if later, ok := s.order(); ok && later.Signal == "KILL" {
				close(hurry)
				return
			}
		}
	}()
	left, own := s.tree.End(Ending{Signal: o.Signal, Grace: time.Duration(o.GraceMS) * time.Millisecond, Hurry: hurry, Exited: s.exited})
	close(over)
	if own {
		<-s.exited
		return s.ended("", nil)
	}
	return s.ended(cmp.Or(o.Reason, "stopped"), left)
}

// ended takes the last output and describes the end. reason is "" when the program ended by
// itself.
func (s *supervisor) ended(reason string, left []int) end {
	s.stdout.catchUp(catchTime)
	s.stderr.catchUp(catchTime)
	e := end{State: Failed, Detail: reason, At: time.Now().UTC(), Left: left, Sizes: sizes{s.stdout.seal(), s.stderr.seal()}}
	select {
	case <-s.exited:
		code, signal := s.procs.Exit(s.state)
		e.ExitCode, e.Signal = &code, signal
		if code == 0 {
			e.State = Done
		}
		if signal != "" && reason == "" {
			e.Detail = "ended by " + signal + ", which Drover didn't send"
			if signal == "SIGKILL" {
				e.Detail += "; the system may have run out of memory (see dmesg)"
			}
		}
	default: // it's among those that could not be killed
	}
	if reason != "" {
		e.State = Killed
	}
	return e
}

// write writes down the end. On a full disk it gives up room that was kept for this, and
// tries for a while.
func (s *supervisor) write(e end) error {
	_ = os.Remove(filepath.Join(s.spec.Dir, spareFile))
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for begin := time.Now(); ; <-tick.C {
		err := writeFile(s.spec.Dir, endFile, e)
		if err == nil || time.Since(begin) > writeTime || errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
}
