package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/tests/harness"
)

// devRun is drover dev as a process, and what it printed.
type devRun struct {
	cmd              *exec.Cmd
	out              *syncBuffer
	done             chan struct{}
	err              error
	url, pat, agent  string
	claudeLine, curl string
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func startDev(t *testing.T, bin, dir, listen string) *devRun {
	t.Helper()
	d := &devRun{out: &syncBuffer{}, done: make(chan struct{})}
	d.cmd = exec.Command(filepath.Join(bin, "drover"), "dev", "--data", dir, "--listen", listen, "--agent-id", "here")
	if _, err := os.Stat(filepath.Join(dir, "dev-agent-id")); err == nil {
		d.cmd.Args = d.cmd.Args[:len(d.cmd.Args)-2]
	}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.err = d.cmd.Wait(); close(d.done) }()
	t.Cleanup(func() { _ = d.cmd.Process.Kill(); <-d.done })
	harness.Eventually(t, 30*time.Second, "drover dev says how to connect", func() bool {
		select {
		case <-d.done:
			t.Fatalf("drover dev ended: %v\n%s", d.err, d.out)
		default:
		}
		return strings.Contains(d.out.String(), "curl -sS")
	})
	text := d.out.String()
	find := func(re string) string {
		m := regexp.MustCompile(re).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("no %s in:\n%s", re, text)
		}
		return m[1]
	}
	d.url, d.pat, d.agent = find(`URL +(http\S+)`), find(`PAT +(drv_pat_\S+)`), find(`agent +(\S+) \(online\)`)
	d.claudeLine, d.curl = find(`(claude mcp add .*)`), find(`(curl -sS .*)`)
	return d
}

// get asks the server with the token that was printed.
func (d *devRun) get(t *testing.T, path string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.pat)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("HTTP %d %s %v", resp.StatusCode, b, err)
	}
	return b
}

// interrupt is Ctrl-C.
func (d *devRun) interrupt(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-d.done
	if d.err != nil {
		t.Errorf("drover dev: %v\n%s", d.err, d.out)
	}
}

// agents are the processes that run on this state folder.
func agents(t *testing.T, dir string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "drover-agent\x00run\x00") && strings.Contains(string(b), dir) {
			pids = append(pids, f)
		}
	}
	return pids
}

// programs is a folder with both programs, just built.
func programs(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "./server/cmd/drover", "./agent/cmd/drover-agent")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

func TestDev(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it looks at processes as Linux shows them")
	}
	bin, dir := programs(t), filepath.Join(t.TempDir(), "data")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()

	first := startDev(t, bin, dir, busy.Addr().String())
	if !strings.Contains(first.out.String(), busy.Addr().String()+" is taken") || strings.Contains(first.url, busy.Addr().String()) {
		t.Errorf("a busy port:\n%s", first.out)
	}
	if root := strings.Contains(first.out.String(), "runs as root"); root != (os.Geteuid() == 0) {
		t.Errorf("root is announced: %v", root)
	}
	if want := `claude mcp add --transport http drover ` + first.url + `/mcp --header "Authorization: Bearer ` + first.pat + `"`; first.claudeLine != want || first.agent != "here" {
		t.Errorf("%s\nwant %s", first.claudeLine, want)
	}
	u := run{env: map[string]string{"DROVER_URL": first.url, "DROVER_PAT": first.pat}}
	if got := u.drover(t.Context(), "call", "--agent", "here", "shell_exec", "command=echo $DROVER_AGENT_ID"); got.out != "here\n" {
		t.Errorf("%+v", got)
	}
	if _, err := exec.LookPath("curl"); err == nil {
		if out, err := exec.Command("bash", "-c", first.curl).CombinedOutput(); err != nil || !strings.Contains(string(out), `"state":"succeeded"`) {
			t.Errorf("the pasted line: %v\n%s", err, out)
		}
	}
	// The page's line for a token works from any folder, and says that its address is no other
	// machine's, as the welcome does.
	var me restapi.Whoami
	if err := json.Unmarshal(first.get(t, "/api/v1/whoami"), &me); err != nil {
		t.Fatal(err)
	}
	line := exec.Command("sh", "-c", me.Enroll+" --agent-id web-02")
	line.Dir, line.Env = t.TempDir(), append(os.Environ(), "PATH=/usr/bin:/bin")
	beside := " " + filepath.Join(bin, "drover-agent") + " run --server " + first.url + "\n" // where no shell looks for it
	alone := first.url + " is this machine alone"
	if out, err := line.CombinedOutput(); err != nil || !strings.Contains(string(out), "drv_enr_") || !strings.Contains(string(out), alone) || !strings.Contains(string(out), beside) || !strings.Contains(first.out.String(), alone) {
		t.Errorf("%s: %v\n%s\nand first\n%s", me.Enroll, err, out, first.out)
	}
	if fi, err := os.Stat(filepath.Join(dir, "dev-pat")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("dev-pat: %v, %v", fi, err)
	}
	first.interrupt(t)
	if left := agents(t, dir); len(left) > 0 {
		t.Errorf("agents are left: %v", left)
	}

	if got := (run{}).drover(t.Context(), "enroll", "create", "--data", dir, "--agent-id", "web-01"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	for _, id := range []string{"web-01", "there"} { // one that's to be another host, and one that's nobody
		out, err := exec.Command(filepath.Join(bin, "drover"), "dev", "--data", dir, "--listen", "127.0.0.1:0", "--agent-id", id).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the agent of "+dir+" is here") {
			t.Errorf("another --agent-id: %v\n%s", err, out)
		}
	}

	second := startDev(t, bin, dir, "127.0.0.1:0")
	if second.pat != first.pat || second.agent != first.agent {
		t.Errorf("%s %s, then %s %s", first.pat, first.agent, second.pat, second.agent)
	}
	_ = second.cmd.Process.Kill() // not even then the agent outlives it
	<-second.done
	harness.Eventually(t, 10*time.Second, "the agent ends with drover", func() bool { return len(agents(t, dir)) == 0 })

	local := run{env: map[string]string{"DROVER_DATA": dir}}
	for _, p := range into[restapi.PATList](t, local.drover(t.Context(), "pat", "list", "--json")).PATs {
		local.drover(t.Context(), "pat", "revoke", p.ID)
	}
	if got := local.drover(t.Context(), "agents", "remove", "here"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	third := startDev(t, bin, dir, "127.0.0.1:0")
	if third.pat == first.pat || third.agent != "here-2" {
		t.Errorf("after revocation and removal: %s %s", third.pat, third.agent)
	}
	third.interrupt(t)
}

// TestDevOnAnotherPort: hosts that were added dial the address of then, and whoever starts the
// server on another one is told so, and what to do; a server that runs already comes first.
func TestDevOnAnotherPort(t *testing.T) {
	bin, dir := programs(t), filepath.Join(t.TempDir(), "data")
	first := startDev(t, bin, dir, "127.0.0.1:0")
	host := first.add(t, bin, dir, "web-01")
	if strings.Contains(first.out.String(), "cut off") {
		t.Errorf("nobody is cut off at first:\n%s", first.out)
	}

	again := exec.Command(filepath.Join(bin, "drover"), "dev", "--data", dir, "--listen", strings.TrimPrefix(first.url, "http://"))
	out, err := again.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Drover already runs on the data in "+dir+", at "+first.url) || strings.Contains(string(out), "taken") {
		t.Errorf("while one runs: %v\n%s", err, out)
	}
	first.interrupt(t)

	for range 2 { // as long as the host isn't back
		moved := startDev(t, bin, dir, "127.0.0.1:0")
		harness.Eventually(t, 10*time.Second, "it says who is cut off", func() bool {
			return strings.Contains(moved.out.String(), "start each with the new address")
		})
		for _, want := range []string{"this server is at " + moved.url + ", and they dial " + first.url, "where it was before: web-01\n"} {
			if !strings.Contains(moved.out.String(), want) {
				t.Errorf("no %q in:\n%s", want, moved.out)
			}
		}
		moved.interrupt(t)
	}

	back := startDev(t, bin, dir, strings.TrimPrefix(first.url, "http://")) // as the line says
	back.online(t, "web-01")
	if strings.Contains(back.out.String(), "cut off") {
		t.Errorf("it's back:\n%s", back.out)
	}
	back.interrupt(t)

	// The other way that it says: from then on the new address is the host's.
	moved := startDev(t, bin, dir, "127.0.0.1:0")
	host.start(t, "--server", moved.url)
	moved.online(t, "web-01")
	moved.interrupt(t)
	stays := startDev(t, bin, dir, strings.TrimPrefix(moved.url, "http://"))
	if strings.Contains(stays.out.String(), "cut off") {
		t.Errorf("it was moved:\n%s", stays.out)
	}
	stays.interrupt(t)
	last := startDev(t, bin, dir, strings.TrimPrefix(first.url, "http://"))
	harness.Eventually(t, 10*time.Second, "it says who is cut off", func() bool {
		return strings.Contains(last.out.String(), "they dial "+moved.url)
	})
	last.interrupt(t)
}

// devHost is another agent, beside drover dev's own.
type devHost struct {
	program, state string
	stop           func()
}

// add enrols another agent at this server, as its own words say, and waits until it's online.
func (d *devRun) add(t *testing.T, bin, dir, id string) *devHost {
	t.Helper()
	token := (run{}).drover(t.Context(), "enroll", "create", "--data", dir, "--agent-id", id)
	if token.code != 0 || !strings.Contains(token.err, "--server "+d.url+"\n") {
		t.Fatalf("%+v", token)
	}
	h := &devHost{program: filepath.Join(bin, "drover-agent"), state: t.TempDir(), stop: func() {}}
	t.Cleanup(func() { h.stop() })
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.out), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start(t, "--server", d.url, "--token-file", file)
	d.online(t, id)
	return h
}

// start starts the agent, in the place of the process that it was before.
func (h *devHost) start(t *testing.T, args ...string) {
	t.Helper()
	h.stop()
	cmd := exec.Command(h.program, append([]string{"run", "--state", h.state}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
}

// online waits until an agent is.
func (d *devRun) online(t *testing.T, id string) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, id+" is online", func() bool {
		var l restapi.AgentList
		err := json.Unmarshal(d.get(t, "/api/v1/agents?state=online"), &l)
		return err == nil && slices.ContainsFunc(l.Agents, func(g restapi.AgentInfo) bool { return g.AgentID == id })
	})
}
