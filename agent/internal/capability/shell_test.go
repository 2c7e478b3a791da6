//go:build linux

package capability_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/testenv"
)

func TestX01_StandardInputIsEmptyOrWhatWasGiven(t *testing.T) {
	r := newRig(t)
	within(t, 2*time.Second, "reading an empty input", func() {
		if out := sh(t, r, "cat; read x; echo got:$x"); out.Stdout != "got:\n" || out.ExitCode != 0 {
			t.Errorf("got %+v", out)
		}
	})
	within(t, 5*time.Second, "an interpreter without a script", func() {
		testenv.Require(t, found("python3"), "python3 isn't installed")
		if out := sh(t, r, "python3"); out.ExitCode != 0 {
			t.Errorf("got %+v", out)
		}
	})
	big := strings.Repeat("0123456789abcde\n", 60_000)
	if out, fault := shell(t, r, args{"command": "wc -c; wc -c", "stdin": big}); fault != nil || strings.Fields(out.Stdout)[0] != strconv.Itoa(len(big)) {
		t.Errorf("given: %+v %v", out, fault)
	}
	within(t, 2*time.Second, "input that's never read", func() {
		if out, fault := shell(t, r, args{"command": "true", "stdin": big}); fault != nil || out.ExitCode != 0 {
			t.Errorf("unread: %+v %v", out, fault)
		}
	})
}

func found(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// Calls on one agent don't wait for each other.
func TestX01_OtherCallsGoOnMeanwhile(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = call[spec.ProcessOut](ctx, t, r, "shell_exec", args{"command": "sleep 60"})
	}()
	within(t, 2*time.Second, "hostname", func() { sh(t, r, "hostname") })
	cancel(&mux.CancelError{})
	<-done
}

func TestX03_SignalAndTimeoutAreErrorsThatKeepTheOutput(t *testing.T) {
	r := newRig(t)
	out, fault := shell(t, r, args{"command": "echo part; echo err >&2; kill -9 $$"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonSignal)
	if out.Signal != "SIGKILL" || out.ExitCode != 137 || out.Stdout != "part\n" || out.Stderr != "err\n" {
		t.Errorf("signal: %+v", out)
	}
	out, fault = shell(t, r, args{"command": "echo part; sleep 100", "timeout_seconds": 1})
	wantFault(t, fault, protocol.CodeTimedOut, "")
	if out.Stdout != "part\n" || out.ExitCode != -1 || out.DurationMS < 1000 || out.DurationMS > 4000 {
		t.Errorf("timeout: %+v", out)
	}
	out = sh(t, r, "exit 3")
	if out.ExitCode != 3 || out.Signal != "" || out.PID == 0 {
		t.Errorf("exit code: %+v", out)
	}
}

// alive tells whether a process runs; a zombie doesn't.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	rest := b[strings.LastIndexByte(string(b), ')')+1:]
	return !strings.HasPrefix(string(rest), " Z")
}

func pids(t *testing.T, text string) []int {
	t.Helper()
	var out []int
	for _, f := range strings.Fields(text) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatalf("%q isn't a list of pids", text)
		}
		out = append(out, n)
	}
	return out
}

func TestX04_TheWholeTreeDiesAlsoWhatLeftTheGroup(t *testing.T) {
	r := newRig(t)
	for name, line := range map[string]string{
		"own session":            `setsid sleep 4242 & echo $!; echo $$; sleep 4243`,
		"own session, twice":     `setsid bash -c 'setsid sleep 4242 & echo $!; sleep 4243' & sleep 4243`,
		"orphan":                 `(setsid bash -c 'echo $$; exec sleep 4242' &) ; sleep 4243`,
		"no environment":         `env -i setsid sleep 4242 & echo $!; sleep 4243`,
		"orphan, no environment": `(env -i sleep 4242 & echo $!); sleep 4243`,
		"deaf to TERM":           `trap '' TERM; echo $$; sleep 4242 & echo $!; while :; do sleep 4243; done`,
		"forking on TERM":        `trap 'setsid sleep 4242 & echo $!' TERM; echo $$; sleep 4243 & wait; sleep 1; sleep 4243`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, fault := shell(t, r, args{"command": line, "timeout_seconds": 1})
			wantFault(t, fault, protocol.CodeTimedOut, "")
			list := pids(t, out.Stdout)
			if len(list) == 0 || len(out.Left) != 0 {
				t.Errorf("got %+v", out)
			}
			for _, pid := range list {
				if alive(pid) {
					t.Errorf("%d is alive", pid)
				}
			}
		})
	}
}

func TestX04_CancelIsAnsweredWhenTheTreeIsDead(t *testing.T) {
	r := newRig(t)
	mark := filepath.Join(t.TempDir(), "pids")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		eventually(t, "the command's start", func() bool { b, _ := os.ReadFile(mark); return strings.Count(string(b), "\n") == 2 })
		cancel(&mux.CancelError{Reason: "asked to"})
	}()
	out, fault := call[spec.ProcessOut](ctx, t, r, "shell_exec", args{"command": "setsid sleep 4244 & echo $! >" + mark + "; echo $$ >>" + mark + "; echo part; sleep 4245"})
	wantFault(t, fault, protocol.CodeCancelled, "")
	for _, pid := range pids(t, readFile(t, mark)) {
		if alive(pid) {
			t.Errorf("%d is alive", pid)
		}
	}
	if out.Stdout != "part\n" || !strings.Contains(fault.Message, "asked to") {
		t.Errorf("got %+v, %v", out, fault)
	}
}

func TestABackgroundChildNeitherHoldsTheCallNorIsHurt(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "alive")
	var out spec.ProcessOut
	within(t, 2*time.Second, "a command with a background child", func() {
		// It writes to the pipe after the call has ended, which must not kill it.
		out = sh(t, r, "(for i in 1 2 3 4 5 6; do sleep 0.1; echo noise; done; echo yes >"+file+"; sleep 60) & echo $!; echo ok")
	})
	list := pids(t, strings.TrimSuffix(strings.Split(out.Stdout, "ok")[0], "\n"))
	eventually(t, "the child's last line", func() bool { b, _ := os.ReadFile(file); return string(b) == "yes\n" })
	if !alive(list[0]) {
		t.Error("the child was ended")
	}
	_ = syscall.Kill(-list[0], syscall.SIGKILL)
	_ = syscall.Kill(list[0], syscall.SIGKILL)
}

func TestX06_EndlessOutputIsDrainedAndBounded(t *testing.T) {
	r := newRig(t)
	out := sh(t, r, "echo first; head -c 200M /dev/zero | tr '\\0' a; echo; echo last")
	if !out.Truncated || out.StdoutBytes != 200<<20+12 || len(out.Stdout) > 40_000 || out.Invalid {
		t.Errorf("truncated %v, %d bytes of %d", out.Truncated, len(out.Stdout), out.StdoutBytes)
	}
	if !strings.HasPrefix(out.Stdout, "first\naaa") || !strings.HasSuffix(out.Stdout, "aaa\nlast\n") || !strings.Contains(out.Stdout, " bytes left out …") {
		t.Errorf("head or tail is missing: %.60q … %q", out.Stdout, out.Stdout[len(out.Stdout)-20:])
	}
}

func TestX07_OneCapOverBothStreamsAndTheErrorText(t *testing.T) {
	r := newRig(t)
	for line, want := range map[string]func(spec.ProcessOut) bool{
		"head -c 5M /dev/urandom | base64 >&2; exit 3": func(o spec.ProcessOut) bool { return len(o.Stderr) > 18_000 && o.Stdout == "" && o.ExitCode == 3 },
		"yes a | head -c 1M; yes b | head -c 1M >&2": func(o spec.ProcessOut) bool {
			return len(o.Stdout) > 6_000 && len(o.Stderr) > 6_000
		},
		"yes a | head -c 1M; echo short >&2": func(o spec.ProcessOut) bool { return len(o.Stdout) > 13_000 && o.Stderr == "short\n" },
		"head -c 1M /dev/zero":               func(o spec.ProcessOut) bool { return o.Invalid && strings.HasPrefix(o.Stdout, `\x00\x00`) },
		`yes $'\x1b\x01"' | head -c 1M`:      func(o spec.ProcessOut) bool { return !o.Invalid },
	} {
		req := r.request(t, "shell_exec", args{"command": line, "max_output": 20_000})
		resp := r.Handle(t.Context(), req, mux.Detached(func(string) {}))
		if len(resp.Result) > 20_400 {
			t.Errorf("%s: an answer of %d bytes", line, len(resp.Result))
		}
		out, _ := shell(t, r, args{"command": line, "max_output": 20_000})
		if !out.Truncated || !want(out) {
			t.Errorf("%s: truncated %v, %d and %d bytes, invalid %v, code %d", line, out.Truncated, len(out.Stdout), len(out.Stderr), out.Invalid, out.ExitCode)
		}
	}
	for _, program := range []string{strings.Repeat("x", 1<<20), "/" + strings.Repeat("x/", 1<<19)} {
		_, fault := shell(t, r, args{"argv": []string{program}})
		if fault == nil || fault.Code != protocol.CodeToolFailed || len(fault.Message) > 2000 {
			t.Errorf("a program with a name of 1 MB: %.300v", fault)
		}
	}
}

func TestX08_InvalidBytesAreShownAsSuch(t *testing.T) {
	out := sh(t, newRig(t), `printf 'ok \xe4\xf6 \xf0\x9f\x98\x80'; printf 'a\0b\xf0\x9f' >&2`)
	if out.Stdout != `ok \xe4\xf6 😀` || out.Stderr != `a\x00b\xf0\x9f` || !out.Invalid {
		t.Errorf("got %+v", out)
	}
}

func TestX09_BytesArriveUnchanged(t *testing.T) {
	r := newRig(t)
	nasty := []string{"a'b\"c $HOME `id` \n", "-rf", "", "é😀\u202e", `C:\`, "%PATH%", "$(id)", "*"}
	out, fault := shell(t, r, args{"argv": append([]string{"printf", `%s\0`}, nasty...)})
	if want := strings.Join(nasty, `\x00`) + `\x00`; fault != nil || out.Stdout != want {
		t.Errorf("argv: got %q, want %q (%v)", out.Stdout, want, fault)
	}
	line := `printf '%s' "a'b\"c \$HOME"; echo; cat <<'E'` + "\n$x `y` \\ %PATH%\nE\n"
	if out := sh(t, r, line); out.Stdout != "a'b\"c $HOME\n$x `y` \\ %PATH%\n" {
		t.Errorf("command: got %q", out.Stdout)
	}
	if out, fault := shell(t, r, args{"command": `printf %s "$V"`, "env": args{"V": nasty[0]}}); fault != nil || out.Stdout != nasty[0] {
		t.Errorf("env: got %q (%v)", out.Stdout, fault)
	}
}

// No terminal can be opened, so that sudo and ssh fail at once instead of asking.
func TestX10_ThereIsNoTerminalToAskOn(t *testing.T) {
	r := newRig(t)
	if out := sh(t, r, "(: </dev/tty) 2>&1; tty; tty <&1"); !strings.Contains(out.Stdout, "No such device or address") || strings.Contains(out.Stdout, "/dev/pts") {
		t.Errorf("got %+v", out)
	}
	// A session of its own has none, also when the agent was started from one.
	if out := sh(t, r, "echo $$; awk '{print $6}' /proc/$$/stat"); len(strings.Fields(out.Stdout)) != 2 || strings.Fields(out.Stdout)[0] != strings.Fields(out.Stdout)[1] {
		t.Errorf("the command isn't its session's leader: %q", out.Stdout)
	}
	// Where sudo is installed, it too gives up instead of asking.
	if !found("sudo") || !found("setpriv") {
		return
	}
	within(t, 2*time.Second, "sudo without a password", func() {
		out, fault := shell(t, r, args{"command": "setpriv --reuid 65534 --clear-groups sudo id"})
		if fault != nil || out.ExitCode == 0 {
			t.Errorf("got %+v, %v", out, fault)
		}
	})
}

func TestX12_RunesAreNotCutAndNULDoesNotPass(t *testing.T) {
	r := newRig(t)
	for limit := 65_530; limit < 65_542; limit++ {
		out, fault := shell(t, r, args{"command": "for i in $(seq 1024); do printf '%s' " + strings.Repeat("😀", 256) + "; done", "max_output": limit})
		if fault != nil || out.Invalid || !utf8.ValidString(out.Stdout) || !out.Truncated || out.StdoutBytes != 1<<20 {
			t.Errorf("at %d: invalid %v, %d of %d bytes, %v", limit, out.Invalid, len(out.Stdout), out.StdoutBytes, fault)
		}
	}
}

func TestG10_CommandsSeeWhoTheyActForAndNoSecret(t *testing.T) {
	t.Setenv("DROVER_ENROLL_TOKEN", "drv_enr_secret")
	t.Setenv("DROVER_STATE", "/somewhere")
	t.Setenv("DATABASE_URL", "postgres://secret")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("LC_TIME", "C")
	t.Setenv("SHELL", "")
	r := newRig(t)
	req := r.request(t, "shell_exec", args{"command": "env -0", "env": args{"ADDED": "x\ny", "PATH": "/usr/bin:/bin"}})
	resp := r.Handle(t.Context(), req, mux.Detached(func(string) {}))
	if resp.Error != nil || strings.Contains(string(resp.Result), "secret") {
		t.Fatalf("%s %v", resp.Result, resp.Error)
	}
	out, _ := shell(t, r, args{"command": "env | sort", "env": args{"ADDED": "x", "PATH": "/usr/bin:/bin"}})
	env := map[string]string{}
	for line := range strings.Lines(out.Stdout) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	for name, want := range map[string]string{"DROVER_AGENT_ID": "web-01", "DROVER_CALLER": "pat:0192:ann-s-laptop----id-", "ADDED": "x", "PATH": "/usr/bin:/bin",
		"TERM": "dumb", "PAGER": "cat", "LC_TIME": "C"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	for _, name := range []string{"HOME", "USER", "SHELL", "DROVER_CALL_ID"} {
		if env[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range env {
		if strings.HasPrefix(name, "DROVER_") && !slices.Contains([]string{"DROVER_AGENT_ID", "DROVER_CALL_ID", "DROVER_CALLER", "DROVER_STARTED_BY"}, name) {
			t.Errorf("%s is passed on", name)
		}
	}
}

// TestTextIsUTF8UnlessSaidOtherwise: what nobody sets is UTF-8; what the host or the call says counts.
func TestTextIsUTF8UnlessSaidOtherwise(t *testing.T) {
	for _, c := range []struct {
		host string
		env  args
		want string
	}{
		{"", args{}, "<unset> <unset> <C.UTF-8> <2>"},
		{"", args{"LC_TIME": "C"}, "<unset> <unset> <C.UTF-8> <2>"},
		{"", args{"LANG": "C"}, "<C> <unset> <unset> <3>"},
		{"", args{"LC_ALL": "C"}, "<unset> <C> <unset> <3>"},
		{"", args{"LANG": ""}, "<> <unset> <unset> <3>"},
		{"C", args{}, "<C> <unset> <unset> <3>"},
		{"C", args{"LC_CTYPE": "C.UTF-8"}, "<C> <unset> <C.UTF-8> <2>"},
	} {
		for _, name := range []string{"LANG", "LC_ALL", "LC_CTYPE"} {
			t.Setenv(name, "")
		}
		t.Setenv("LANG", c.host)
		r := newRig(t)
		out, fault := shell(t, r, args{"command": `s=aé; echo "<${LANG-unset}> <${LC_ALL-unset}> <${LC_CTYPE-unset}> <${#s}>"`, "env": c.env})
		if fault != nil || out.Stdout != c.want+"\n" {
			t.Errorf("host %q, call %v: %q %v, want %s", c.host, c.env, out.Stdout, fault, c.want)
		}
	}
}

// TestCommandsSeeTheirTrace: a well-formed one; anything else is none, and no reason to fail.
func TestCommandsSeeTheirTrace(t *testing.T) {
	r := newRig(t)
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		sent string
		env  args
		want string
	}{
		{good, args{}, "<" + good + ">"}, {"", args{}, "<unset>"}, {"00-x", args{}, "<unset>"}, {good + "\nEVIL=1", args{}, "<unset>"}, {"$(id)", args{}, "<unset>"},
		{good, args{"TRACEPARENT": "mine"}, "<mine>"},
	} {
		req := r.request(t, "shell_exec", args{"command": `echo "<${TRACEPARENT-unset}>"`, "env": c.env})
		req.Traceparent = c.sent
		resp := r.Handle(t.Context(), req, mux.Detached(nil))
		if resp.Error != nil || !strings.Contains(string(resp.Result), `"stdout":"`+c.want) {
			t.Errorf("%q: %s %v", c.sent, resp.Result, resp.Error)
		}
	}
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	plain := writeFile(t, dir+"/plain", "no program")
	script := writeFile(t, dir+"/script", "#!/no/such/interpreter\n")
	junk := writeFile(t, dir+"/junk", "\x01\x02\x03")
	for _, f := range []string{script, junk} {
		if err := os.Chmod(f, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		a      args
		code   protocol.Code
		reason string
	}{
		"unknown program":   {args{"argv": []string{"no-such-program"}}, protocol.CodeToolFailed, protocol.ReasonENOENT},
		"unknown path":      {args{"argv": []string{"/no/such/program"}}, protocol.CodeToolFailed, protocol.ReasonENOENT},
		"not executable":    {args{"argv": []string{plain}}, protocol.CodeToolFailed, protocol.ReasonEACCES},
		"a folder":          {args{"argv": []string{dir}}, protocol.CodeToolFailed, protocol.ReasonEACCES},
		"no interpreter":    {args{"argv": []string{script}}, protocol.CodeToolFailed, protocol.ReasonENOENT},
		"not a program":     {args{"argv": []string{junk}}, protocol.CodeToolFailed, "enoexec"},
		"no cwd":            {args{"command": "true", "cwd": "/no/such/folder"}, protocol.CodeToolFailed, protocol.ReasonENOENT},
		"cwd is a file":     {args{"command": "true", "cwd": plain}, protocol.CodeToolFailed, protocol.ReasonENOTDIR},
		"relative cwd":      {args{"command": "true", "cwd": "x"}, protocol.CodeBadArgs, ""},
		"neither":           {args{}, protocol.CodeBadArgs, ""},
		"both":              {args{"command": "true", "argv": []string{"true"}}, protocol.CodeBadArgs, ""},
		"empty argv[0]":     {args{"argv": []string{""}}, protocol.CodeBadArgs, ""},
		"NUL in argv":       {args{"argv": []string{"echo", "a\x00b"}}, protocol.CodeBadArgs, ""},
		"NUL in command":    {args{"command": "echo a\x00b"}, protocol.CodeBadArgs, ""},
		"NUL in env":        {args{"command": "true", "env": args{"A": "\x00"}}, protocol.CodeBadArgs, ""},
		"= in env":          {args{"command": "true", "env": args{"A=B": ""}}, protocol.CodeBadArgs, ""},
		"Drover's own name": {args{"command": "true", "env": args{"DROVER_AGENT_ID": "db-01"}}, protocol.CodeBadArgs, ""},
		"spelled small":     {args{"command": "true", "env": args{"drover_x": ""}}, protocol.CodeBadArgs, ""},
	} {
		out, fault := shell(t, r, c.a)
		wantFault(t, fault, c.code, c.reason)
		if c.code == protocol.CodeToolFailed && out.ExitCode != -1 {
			t.Errorf("%s: exit code %d", name, out.ExitCode)
		}
	}
}

// A command that names no folder runs at home: where it can't, that's said, and what to do.
func TestHomeThatCannotBeUsed(t *testing.T) {
	home := t.TempDir() + "/home"
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	r := newRig(t)
	if out := sh(t, r, "pwd"); out.Stdout != home+"\n" {
		t.Fatalf("it runs in %q", out.Stdout)
	}
	if err := os.Remove(home); err != nil {
		t.Fatal(err)
	}
	words := []string{home, "the home of the agent's user", "name another folder in cwd", "no such file or folder"}
	for name, a := range map[string]args{
		"a command line":     {"command": "true"},
		"a program":          {"argv": []string{"true"}},
		"a relative program": {"argv": []string{"./x"}},
	} {
		_, fault := shell(t, r, a)
		wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOENT)
		for _, w := range words {
			if fault != nil && !strings.Contains(fault.Message, w) {
				t.Errorf("%s: %q lacks %q", name, fault.Message, w)
			}
		}
		a["cwd"] = home // it's the caller's own choice then
		if _, fault := shell(t, r, a); fault == nil || strings.Contains(fault.Message, "home of") || !strings.Contains(fault.Message, "the command's folder (cwd)") {
			t.Errorf("%s, with cwd: %v", name, fault)
		}
	}
	if out, fault := shell(t, r, args{"command": "pwd", "cwd": "/"}); fault != nil || out.Stdout != "/\n" {
		t.Errorf("elsewhere: %v, %v", out, fault)
	}
}

func TestProgressCarriesTheLatestLine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	req := r.request(t, "shell_exec", args{"command": "echo early; printf '\\033[1mstep 2\\033[0m\\r\\n'; sleep 6"})
	req.Progress = true
	var got []string
	resp := r.Handle(t.Context(), req, mux.Detached(func(m string) { got = append(got, m) }))
	if resp.Error != nil || len(got) != 1 || got[0] != "step 2" {
		t.Errorf("got %q, %v", got, resp.Error)
	}
}

func TestADeadlineShorterThanTheTimeoutWins(t *testing.T) {
	r := newRig(t)
	req := r.request(t, "shell_exec", args{"command": "sleep 100", "timeout_seconds": 90})
	req.DeadlineMS = 300
	within(t, 5*time.Second, "the call", func() {
		wantFault(t, r.Handle(t.Context(), req, mux.Detached(func(string) {})).Error, protocol.CodeTimedOut, "")
	})
}
