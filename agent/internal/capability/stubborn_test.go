//go:build linux

package capability_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
)

const (
	// memoryMost is how much the agent's memory may grow, whatever a command does.
	memoryMost = 50 << 20
	// otherMost is how long other calls on the agent may take meanwhile.
	otherMost = 2 * time.Second
)

// beside runs fn while other calls are made on the same agent and its memory is watched.
func beside(t *testing.T, r *rig, fn func()) {
	t.Helper()
	heap := func() uint64 { // what's held: garbage of a race build says nothing of the agent
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before, most, slowest := heap(), uint64(0), time.Duration(0)
	done, others := make(chan struct{}), sync.WaitGroup{}
	others.Go(func() {
		for {
			began := time.Now()
			if out, fault := shell(t, r, args{"command": "echo here"}); fault != nil || out.Stdout != "here\n" {
				t.Errorf("another call: %+v, %v", out, fault)
			}
			slowest, most = max(slowest, time.Since(began)), max(most, heap())
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	func() {
		defer others.Wait()
		defer close(done)
		fn()
	}()
	if slowest > otherMost {
		t.Errorf("another call took %v", slowest)
	}
	if most > before+memoryMost {
		t.Errorf("the memory grew by %d MiB", (most-before)>>20)
	}
}

// sleepers lists the processes that sleep so many seconds: a number of each test's own.
func sleepers(t *testing.T, seconds string) (out []string) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "sleep\x00"+seconds+"\x00") {
			out = append(out, f)
		}
	}
	return out
}

func TestWhatLivesOnIsNotHurt(t *testing.T) {
	r := newRig(t)
	for name, line := range map[string]string{
		"background": `sleep 4270 & echo $!`,
		"nohup":      `nohup sleep 4271 >/dev/null 2>&1 & echo $!`,
		"daemon":     `(setsid sh -c 'echo $$; exec sleep 4272 >/dev/null 2>&1 </dev/null' &)`,
		"clean":      `(env -i setsid setsid sh -c 'echo $$; exec sleep 4273' &); sleep 0.1`,
	} {
		t.Run(name, func(t *testing.T) {
			var out spec.ProcessOut
			beside(t, r, func() {
				within(t, 2*time.Second, "the answer", func() { out = sh(t, r, line+"; sleep 0.1; echo ok") })
			})
			pid := pids(t, strings.TrimSuffix(out.Stdout, "ok\n"))[0]
			sh(t, r, "true")
			if !alive(pid) || out.ExitCode != 0 {
				t.Errorf("alive %v, %+v", alive(pid), out)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		})
	}
}

func TestStubbornCommandsEndInTime(t *testing.T) {
	for name, c := range map[string]struct {
		line    string
		code    protocol.Code
		sleeper string
	}{
		"deaf to TERM": {`trap '' TERM INT HUP; while :; do sleep 4280; done`, protocol.CodeTimedOut, "4280"},
		// Each forks on while it's being killed, to the end of its count.
		"forks fast":       {`trap '' TERM; i=0; while [ $i -lt 150 ]; do (setsid sh -c 'trap "" TERM; sleep 4281 & wait' &); i=$((i+1)); done; sleep 4281`, protocol.CodeTimedOut, "4281"},
		"forks a chain":    {`f() { (setsid sleep 4282 &); [ $1 -gt 0 ] && f $(($1-1)) & }; f 100; sleep 4282`, protocol.CodeTimedOut, "4282"},
		"writes for ever":  {`yes; sleep 4283`, protocol.CodeTimedOut, "4283"},
		"reads its input":  {`cat; read x; echo "got:$x"`, "", ""},
		"asks on terminal": {`read x </dev/tty; echo "got:$x"`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			beside(t, r, func() {
				within(t, 10*time.Second, "the call", func() {
					out, fault := shell(t, r, args{"command": c.line, "timeout_seconds": 1})
					if c.code != "" {
						wantFault(t, fault, c.code, "")
					} else if fault != nil || !strings.HasSuffix(out.Stdout, "got:\n") {
						t.Errorf("got %+v, %v", out, fault)
					}
					if len(out.Left) != 0 {
						t.Errorf("left behind: %v", out.Left)
					}
				})
			})
			if c.sleeper != "" {
				if list := sleepers(t, c.sleeper); len(list) != 0 {
					t.Errorf("%d live: %v", len(list), list)
				}
			}
		})
	}
}

func TestX06_HugeOutputLeavesMemoryAndOthersAlone(t *testing.T) {
	for name, c := range map[string]struct {
		line string // prints $MB MiB
		mb   int64
	}{
		"zeros as text": {`head -c ${MB}M /dev/zero | tr '\0' a`, hugeMiB},
		"one line":      {`echo -n first; head -c ${MB}M /dev/zero | tr '\0' a | tail -c +6`, min(hugeMiB, 600)},
		"lines":         {`yes 'a line of some text' | head -c ${MB}M`, 100},
		"no text":       {`head -c 1M /dev/urandom >$HOME/x; for i in $(seq $MB); do cat $HOME/x; done`, 30},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			r := newRig(t)
			beside(t, r, func() {
				req := r.request(t, "shell_exec", args{"command": c.line, "env": args{"MB": itoa(c.mb), "HOME": home}, "timeout_seconds": 600})
				req.DeadlineMS = 600_000
				out, fault := handled[spec.ProcessOut](t.Context(), t, r, req)
				if fault != nil || out.ExitCode != 0 || out.StdoutBytes != c.mb<<20 {
					t.Fatalf("exit %d, %d bytes of %d, %v", out.ExitCode, out.StdoutBytes, c.mb<<20, fault)
				}
				if !out.Truncated || len(out.Stdout) > 40_000 || len(out.Stdout) < 15_000 || !out.Kept || !out.KeptPartly || out.Invalid != (name == "no text") {
					t.Errorf("truncated %v, %d bytes of text, kept %v, partly %v, invalid %v", out.Truncated, len(out.Stdout), out.Kept, out.KeptPartly, out.Invalid)
				}
			})
		})
	}
}

// A sudo that would ask for a password finds neither a terminal nor an input to ask on.
func TestX10_SudoFailsAtOnceWhereItWouldAsk(t *testing.T) {
	dir := t.TempDir()
	ask := "#!/bin/sh\nif (: </dev/tty) 2>/dev/null; then printf 'Password: ' >/dev/tty; read p </dev/tty\n" +
		"elif [ \"$1\" = -S ] && read p; then :\nelse echo 'sudo: a terminal is required to read the password' >&2; exit 1; fi\nsleep 4290\n"
	if err := os.WriteFile(dir+"/sudo", []byte(ask), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := newRig(t)
	for _, line := range []string{"sudo id", "sudo -S id"} {
		within(t, 2*time.Second, line, func() {
			if out := sh(t, r, line); out.ExitCode != 1 || !strings.Contains(out.Stderr, "a terminal is required") {
				t.Errorf("%s: %+v", line, out)
			}
		})
	}
}
