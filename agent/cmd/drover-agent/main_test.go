//go:build linux

package main_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/testenv"
)

// binary builds the agent as a release is.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drover-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=9.8.7", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// token is a well-formed enrolment token, which no server made.
func token(t *testing.T) string {
	t.Helper()
	var token protocol.EnrolToken
	rand.Read(token.Seed[:])
	return token.String()
}

// deadPort is a loopback URL that nothing answers.
func deadPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestG10_TheTokenStandsNeitherInEnvironmentNorCommandLine(t *testing.T) {
	agent, secret := binary(t), token(t)
	for name, c := range map[string]struct{ args, env []string }{
		"environment": {nil, []string{"DROVER_ENROLL_TOKEN=" + secret}},
		"flag":        {[]string{"--token", secret}, nil},
		"flag with =": {[]string{"--token=" + secret}, nil},
		"both":        {[]string{"--token", secret}, []string{"DROVER_ENROLL_TOKEN=" + secret}},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := os.Create(t.TempDir() + "/log")
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			cmd := exec.Command(agent, append([]string{"run", "--server", deadPort(t), "--state", t.TempDir() + "/state"}, c.args...)...)
			cmd.Env, cmd.Stderr = append(os.Environ(), c.env...), log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			// It has the token, and so waits for the server to appear.
			said := ""
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(10 * time.Second); !strings.Contains(said, "can't enrol yet") && time.Now().Before(end); <-tick.C {
				said = contents(t, log.Name())
			}
			dir := "/proc/" + strconv.Itoa(cmd.Process.Pid)
			line, env := contents(t, dir+"/cmdline"), contents(t, dir+"/environ")
			if !strings.Contains(said, "can't enrol yet") || !strings.Contains(line, "--server") || !strings.Contains(env, "PATH=") {
				t.Errorf("it doesn't wait for its server: %q\n%s", line, said)
			}
			if strings.Contains(line+env+said, secret) || strings.Contains(env, "DROVER_ENROLL_TOKEN") {
				t.Errorf("the token can be seen: %q", line)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		})
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhatCannotWorkSaysSo(t *testing.T) {
	agent := binary(t)
	state := t.TempDir() + "/state"
	here := []string{"--server", "http://127.0.0.1:1", "--state", state}
	for want, args := range map[string][]string{
		"or say --plaintext":     {"run", "--server", "http://drover.example.com", "--state", state},
		"drover enroll create":   append([]string{"run"}, here...),
		"not both":               append([]string{"run", "--token-fd", "0", "--token-file", "/x"}, here...),
		"--log-format must":      {"run", "--log-format", "xml", "--state", state},
		"--log-level must":       {"run", "--log-level", "loud", "--state", state},
		"no state folder":        {"run", "--state", ""},
		"invalid argument":       {"run", "--plaintext=perhaps"},
		"no server to enrol":     {"enroll", "--state", state, "--token-fd", "0"},
		"command \"serve\"; see": {"serve"},
		"(is it enroll?); see":   {"enrol"},
		"the token file: open":   append([]string{"run", "--token-file", "/no/such"}, here...),
		"begins with https":      {"run", "--server", "ftp://x", "--state", state},
		"holds no certificate":   {"run", "--server", "https://x", "--state", state, "--ca-file", "/etc/hostname"},
		"not an enrolment token": append([]string{"enroll", "--token-fd", "0"}, here...),
		"command \"nope\"; see":  {"help", "nope"},
		"(is it run?); see":      {"help", "rn"},
		"agent completion --h":   {"completion", "nope"},
		"completion --help":      {"help", "completion", "nope"},
		"\"extra\" is one; see":  {"completion", "bash", "extra"},
		"unknown flag: --agent":  {"run", "--agent", "x"},
		"\"x\" is one; see":      {"run", "x"},
		"with --token-file":      append([]string{"run"}, append(here, "--plaintext")...),
	} {
		cmd := exec.Command(agent, args...)
		cmd.Stdin = strings.NewReader("some-token")
		var printed, said strings.Builder
		cmd.Stdout, cmd.Stderr = &printed, &said
		err := cmd.Run()
		out := said.String()
		if err == nil || printed.String() != "" || !strings.Contains(out, want) || strings.Contains(out, "some-token") {
			t.Errorf("%v: want %q, got %s, and on standard output %q", args, want, out, printed.String())
		}
		wrong := 1
		if strings.Contains(want, "see") || strings.Contains(want, "completion") || strings.HasPrefix(want, "unknown flag") ||
			slices.Contains([]string{"or say --plaintext", "not both", "--log-format must", "begins with https", "--log-level must", "no state folder", "invalid argument"}, want) {
			wrong = 2 // the command line itself
		}
		if code := cmd.ProcessState.ExitCode(); code != wrong {
			t.Errorf("%v exits with %d, want %d", args, code, wrong)
		}
	}
}

// TestWhatThisUserCannotUseSpendsNoToken: a folder that the agent couldn't work with is told
// before the server is asked to register its key, with what to do.
func TestWhatThisUserCannotUseSpendsNoToken(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can be another user: run the tests as root")
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	agent, dir := binary(t), t.TempDir()
	open := func(path string, mode os.FileMode) string {
		if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, path := range []string{agent, dir} {
		open(filepath.Dir(path), 0o755) // another user can get there
		open(filepath.Dir(filepath.Dir(path)), 0o755)
	}
	nobody, theirs := uint32(65534), open(filepath.Join(dir, "theirs"), 0o700)
	if err := os.Chown(theirs, int(nobody), int(nobody)); err != nil {
		t.Fatal(err)
	}
	root := []string{"sudo", "--state", "token wasn't used"}
	for name, c := range map[string]struct {
		as   uint32
		args []string
		want []string
	}{
		"a folder to be made where root alone may": {nobody, []string{"--state", filepath.Join(open(filepath.Join(dir, "of root"), 0o755), "state")}, root},
		"root's folder": {nobody, []string{"--state", open(filepath.Join(dir, "closed"), 0o700)}, root},
		"root's folder that everybody may look at": {nobody, []string{"--state", open(filepath.Join(dir, "open"), 0o755)}, root},
		"a folder that can't be":                   {0, []string{"--state", filepath.Join(agent, "state")}, []string{"not a directory", "token wasn't used"}},
		"file tools in a folder that isn't there":  {nobody, []string{"--state", theirs, "--root", "/no/such"}, []string{"/no/such"}},
		"file tools in a folder of no known place": {nobody, []string{"--state", theirs, "--root", "srv"}, []string{"absolute", "see drover-agent run --help"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(agent, append([]string{"run", "--server", server.URL}, c.args...)...)
			cmd.Env, cmd.Dir = append(os.Environ(), "DROVER_ENROLL_TOKEN="+token(t)), "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.as, Gid: c.as}}
			out, err := cmd.CombinedOutput()
			for _, want := range c.want {
				if err == nil || !strings.Contains(string(out), want) {
					t.Errorf("%q isn't in what it says: %v %s", want, err, out)
				}
			}
			if n := asked.Swap(0); n > 0 {
				t.Errorf("the server was asked %d times", n)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	out, err := exec.Command(binary(t), "version", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Version  string
		Protocol int
	}
	if err := json.Unmarshal(out, &v); err != nil || v.Version != "9.8.7" || v.Protocol < 1 {
		t.Errorf("%s: %v", out, err)
	}
}

func TestBinaryIsSmall(t *testing.T) {
	info, err := os.Stat(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 15<<20 {
		t.Errorf("%d bytes, more than 15 MB", info.Size())
	}
}
