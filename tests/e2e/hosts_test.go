package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestTwoHostsOfOneName: a hostname is no key. Two hosts that share one are two
// agents, the name reaches neither, and removing one leaves the other.
func TestTwoHostsOfOneName(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("east-01")
	f.Agent("west-01")
	f.Agent("other-01")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(t.TempDir(), "ran")
	members := fmt.Sprintf(`"agent_id":%q,"command":"echo ran >> %s"`, host, mark)
	token, _ := f.PAT("two of three", "east-01,west-01", "all", false)
	blind, _ := f.PAT("none of them", "nobody-01", "all", false)
	for _, d := range doors(f, token) {
		code, text := d.knock("shell_exec", members)
		if code != "unknown_agent" || !strings.Contains(text, "east-01") || !strings.Contains(text, "west-01") || strings.Contains(text, "other-01") {
			t.Errorf("%s: the hostname is answered with %s: %s", d.name, code, text)
		}
	}
	for _, d := range doors(f, blind) {
		if code, text := d.knock("shell_exec", members); code != "unknown_agent" || strings.Contains(text, "-01") {
			t.Errorf("%s, out of scope: %s: %s", d.name, code, text)
		}
	}
	if ran := read(t, mark); ran != "" {
		t.Errorf("a hostname reached a host: %q", ran)
	}
	if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/agents/east-01", ""); status/100 != 2 {
		t.Fatalf("remove: %d %s", status, b)
	}
	if _, res := f.REST(token).Call("west-01", "shell_exec", map[string]any{"command": "echo $DROVER_AGENT_ID"}); res.Stdout() != "west-01\n" {
		t.Errorf("the one that stays: %+v %+v", res, res.Error)
	}
	if _, res := f.REST(token).Call("east-01", "shell_exec", map[string]any{"command": "true"}); res.Error == nil || res.Error.Code != "unknown_agent" {
		t.Errorf("the one that was removed: %+v", res)
	}
}

// TestBigResults (T-08): results beyond what a frame's default holds come back right, and
// meanwhile neither the tunnel nor the others suffer.
func TestBigResults(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("big-01")
	f.Agent("small-01")
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("0123456789abcde\n", 1<<16+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	alive := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-alive:
				if n == 0 {
					t.Error("the other agent was never called")
				}
				return
			default:
			}
			if _, res := f.REST(f.Admin).Call("small-01", "shell_exec", map[string]any{"command": "echo alive"}); res.Stdout() != "alive\n" {
				t.Errorf("the other agent: %+v %+v", res, res.Error)
			}
		}
	})
	for _, n := range []int64{32_769, 1<<20 + 1, 64 << 20} {
		_, res := f.REST(f.Admin).Call("big-01", "shell_exec", map[string]any{"command": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' a", n), "max_output": 1 << 20})
		var out struct {
			Bytes     int64 `json:"stdout_bytes"`
			Truncated bool  `json:"truncated"`
		}
		if err := json.Unmarshal(res.Result, &out); err != nil {
			t.Fatalf("%d bytes: %v: %+v %+v", n, err, res.State, res.Error)
		}
		if out.Bytes != n || out.Truncated != (n > 1<<20) || res.State != "succeeded" {
			t.Errorf("%d bytes: %s, counted %d, truncated %v", n, res.State, out.Bytes, out.Truncated)
		}
		got := res.Stdout()
		if n <= 1<<20 && got != strings.Repeat("a", int(n)) || len(got) > 1<<20 || len(got) < 32<<10 || strings.Trim(got[:1000]+got[len(got)-1000:], "a") != "" {
			t.Errorf("%d bytes: %d came back", n, len(got))
		}
	}
	var got strings.Builder
	for at := int64(0); ; {
		_, res := f.REST(f.Admin).Call("big-01", "fs_read", map[string]any{"path": file, "unit": "bytes", "offset": at, "limit": 1 << 20, "max_output": 1 << 20})
		var window struct {
			Text string `json:"text"`
			Next int64  `json:"next_offset"`
			Size int64  `json:"size"`
		}
		if err := json.Unmarshal(res.Result, &window); err != nil || window.Size != 1<<20+16 || window.Text == "" {
			t.Fatalf("fs_read from %d: %v: size %d, %d bytes: %+v", at, err, window.Size, len(window.Text), res.Error)
		}
		got.WriteString(window.Text)
		if at = window.Next; at == 0 {
			break
		}
	}
	if got.String() != strings.Repeat("0123456789abcde\n", 1<<16+1) {
		t.Errorf("fs_read: %d bytes came back", got.Len())
	}
	// More than a request may hold fails that call alone.
	if _, res := f.REST(f.Admin).Call("big-01", "fs_write", map[string]any{"path": filepath.Join(dir, "no"), "content": strings.Repeat("x", 9<<20)}); res.Error == nil || res.Error.Code != "too_large" && res.Error.Code != "bad_args" {
		t.Errorf("9 MiB of arguments: %s %+v", res.State, res.Error)
	}
	if _, res := f.REST(f.Admin).Call("big-01", "shell_exec", map[string]any{"command": "echo still here"}); res.Stdout() != "still here\n" {
		t.Errorf("after all of it: %+v %+v", res, res.Error)
	}
	close(alive)
	wg.Wait()
}

// TestCommandsSeeNoSecret (G-10): a command sees whom it acts for, and neither it nor
// /proc shows what the agent was given.
func TestCommandsSeeNoSecret(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	token := d.Run("enroll", "create", "--agent-id", "web-01")
	other := d.Run("enroll", "create", "--agent-id", "web-02")
	run := func(env []string, flags ...string) {
		flags = append([]string{"run", "--server", d.URL, "--state", filepath.Join(t.TempDir(), "state")}, flags...)
		harness.Start(t, append(env, "DATABASE_URL=postgres://secret", "AWS_SECRET_ACCESS_KEY=secret-too", "DROVER_PAT="+d.Admin), d.Programs.Path("drover-agent"), flags...)
	}
	run([]string{"DROVER_ENROLL_TOKEN=" + token})
	run(nil, "--token", other)
	for id, token := range map[string]string{"web-01": token, "web-02": other} {
		d.WaitState(id, "online")
		_, res := d.REST(d.Admin).Call(id, "shell_exec", map[string]any{"command": "env"})
		for _, secret := range []string{token, "DROVER_ENROLL_TOKEN", "DROVER_PAT", d.Admin, "postgres://secret", "secret-too"} {
			if strings.Contains(res.Stdout(), secret) {
				t.Errorf("a command of %s inherits %q:\n%s", id, secret, res.Stdout())
			}
		}
		for _, want := range []string{"DROVER_AGENT_ID=" + id + "\n", "DROVER_CALL_ID=" + res.CallID + "\n", "DROVER_CALLER=pat:", "PATH=/"} {
			if !strings.Contains(res.Stdout(), want) {
				t.Errorf("a command of %s lacks %q:\n%s", id, want, res.Stdout())
			}
		}
		_, res = d.REST(d.Admin).Call(id, "shell_exec", map[string]any{"command": `for f in environ cmdline; do tr '\0' '\n' < /proc/$PPID/$f; done`})
		if out := res.Stdout(); strings.Contains(out, token) || strings.Contains(out, "DROVER_ENROLL_TOKEN") || !strings.Contains(out, "--state") {
			t.Errorf("/proc of the agent %s shows its token, or nothing:\n%s", id, out)
		}
	}
}

// TestSecretsStayOutOfTheRecord: what is written to a file, given on standard input or in
// the environment is nowhere in the database, however it's looked at.
func TestSecretsStayOutOfTheRecord(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	const secret = "marker-8f14e45fceea167a"
	dir := t.TempDir()
	for _, c := range []struct {
		tool string
		args map[string]any
	}{
		{"fs_write", map[string]any{"path": filepath.Join(dir, "f"), "content": secret}},
		{"shell_exec", map[string]any{"command": "cat > " + filepath.Join(dir, "g"), "stdin": secret}},
		{"shell_exec", map[string]any{"command": "true", "env": map[string]string{"PASSWORD": secret}}},
		{"fs_write", map[string]any{"path": "relative", "content": secret}},
		{"shell_exec", map[string]any{"command": "exit 3", "stdin": secret}},
	} {
		if _, res := f.REST(f.Admin).Call("web-01", c.tool, c.args); res.CallID == "" {
			t.Errorf("%s: %+v", c.tool, res.Error)
		}
	}
	if read(t, filepath.Join(dir, "f")) != secret || read(t, filepath.Join(dir, "g")) != secret {
		t.Error("the calls did nothing")
	}
	for _, path := range []string{"/api/v1/audit?limit=200", "/api/v1/calls?limit=200"} {
		if _, b := f.REST(f.Admin).Do("GET", path, ""); strings.Contains(string(b), secret) || !strings.Contains(string(b), "web-01") {
			t.Errorf("GET %s shows the secret, or nothing", path)
		}
	}
	f.Stop()
	for _, name := range []string{"drover.db", "drover.db-wal"} {
		if strings.Contains(read(t, filepath.Join(f.Dir, name)), secret) {
			t.Errorf("%s holds the secret", name)
		}
	}
}

// TestExpiry: a token's calls end with it, and then it's worth nothing.
func TestExpiry(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	var pat struct {
		Token string `json:"token"`
	}
	in := map[string]any{"name": "short", "ttl_seconds": 3, "grant": map[string]any{"agents": map[string]any{"all": true}, "tools": map[string]any{"all": true}}}
	if status := f.REST(f.Admin).JSON("POST", "/api/v1/pats", in, &pat); status/100 != 2 {
		t.Fatalf("PAT: HTTP %d", status)
	}
	sleeper := startSleeper(t, f, pat.Token, "web-01")
	sleeper.ends(t, 12*time.Second)
	if status, _ := f.REST(pat.Token).Do("GET", "/api/v1/agents", ""); status != 401 {
		t.Errorf("after it expired: HTTP %d", status)
	}
}

// TestTheEndOfAFile: lines counted from the end come through the server as the agent gives them,
// with where to go on.
func TestTheEndOfAFile(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\nfour\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, limit int
		text          string
		next          int64
	}{{-1, 10, "four\n", 0}, {-3, 2, "two\nthree\n", -1}, {-4, 1, "one\n", 1}, {-9, 10, "one\ntwo\nthree\nfour\n", 0}} {
		_, res := f.REST(f.Admin).Call("web-01", "fs_read", map[string]any{"path": file, "offset": c.offset, "limit": c.limit})
		var out struct {
			Text string `json:"text"`
			Next int64  `json:"next_offset"`
		}
		if err := json.Unmarshal(res.Result, &out); err != nil || res.State != "succeeded" || out.Text != c.text || out.Next != c.next {
			t.Errorf("offset %d: %s %+v %s, %v", c.offset, res.State, res.Error, res.Result, err)
		}
	}
}

// TestAnEmptyConditionIsNone: a condition that's given and empty, as by a script whose variable
// isn't set, is refused: taken for absent it would replace what it was to keep.
func TestAnEmptyConditionIsNone(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	file := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, res := f.REST(f.Admin).Call("web-01", "fs_write", map[string]any{"path": file, "content": "lost", "if_sha256": ""})
	if res.Error == nil || res.Error.Code != "bad_args" {
		t.Errorf("fs_write: %s %+v", res.State, res.Error)
	}
	for _, name := range []string{"if_sha256", "sha256", "upload", "mode", "create_parents"} {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", f.URL+"/api/v1/agents/web-01/files?path="+file+"&"+name+"=", strings.NewReader("lost"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Admin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("%s: HTTP %d", name, resp.StatusCode)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
		t.Errorf("it holds %q, %v", b, err)
	}
}
