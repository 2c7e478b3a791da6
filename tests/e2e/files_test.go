package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// randomFile makes a file of noise and returns its hex SHA-256.
func randomFile(t *testing.T, path string, size int64) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8([32]byte{7}), size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// copying runs drover cp beside the test.
type copying struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

func startCopy(t *testing.T, d *harness.Deployment, args ...string) *copying {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	c := &copying{cmd: exec.CommandContext(ctx, d.Programs.Path("drover"), append([]string{"cp", "--json"}, args...)...)}
	c.cmd.Env = append(harness.Environ(), "DROVER_URL="+d.URL, "DROVER_PAT="+d.Admin)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

type copied struct {
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
	CallID  string `json:"call_id"`
	Resumed int64  `json:"resumed_at"`
}

func (c *copying) wait(t *testing.T) (got copied) {
	t.Helper()
	if err := c.cmd.Wait(); err != nil {
		t.Fatalf("drover cp: %v\n%s", err, c.errs.String())
	}
	if err := json.Unmarshal(c.out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, c.out.String())
	}
	return got
}

// TestFilesBothWaysAndAcrossACut moves 200 MB between real processes, and cuts the agent's
// tunnel in the middle of each way.
func TestFilesBothWaysAndAcrossACut(t *testing.T) {
	t.Parallel()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	target, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := fault.NewProxy(t, target.Host)
	host, here := t.TempDir(), t.TempDir()
	d.HostAt("web-01", proxy.URL(), nil, "--root", host)
	const size = 200_000_000
	src := filepath.Join(here, "src")
	sum := randomFile(t, src, size)

	t.Run("whole", func(t *testing.T) {
		if got := startCopy(t, d, src, "web-01:"+host+"/whole").wait(t); got.SHA256 != sum || got.Size != size || sumOf(t, host+"/whole") != sum {
			t.Errorf("up: %+v", got)
		}
		if got := startCopy(t, d, "web-01:"+host+"/whole", here+"/whole").wait(t); got.SHA256 != sum || sumOf(t, here+"/whole") != sum {
			t.Errorf("down: %+v", got)
		}
	})
	// Slow enough to be cut in the middle.
	slow := fault.Link{Rate: 25_000_000}
	proxy.Shape(slow, slow)
	t.Run("upload cut", func(t *testing.T) {
		c := startCopy(t, d, src, "web-01:"+host+"/cut")
		cutAt(t, proxy, host+"/.drover-upload-*", size)
		proxy.Shape(fault.Link{}, fault.Link{})
		if got := c.wait(t); got.SHA256 != sum || got.Resumed < size/10 || sumOf(t, host+"/cut") != sum {
			t.Errorf("%+v\n%s", got, c.errs.String())
		}
	})
	proxy.Shape(slow, slow)
	t.Run("download cut", func(t *testing.T) {
		c := startCopy(t, d, "web-01:"+host+"/whole", here+"/cut")
		cutAt(t, proxy, here+"/.drover-*.part", size)
		proxy.Shape(fault.Link{}, fault.Link{})
		if got := c.wait(t); got.SHA256 != sum || sumOf(t, here+"/cut") != sum || !strings.Contains(c.errs.String(), "going on in") {
			t.Errorf("%+v\n%s", got, c.errs.String())
		}
	})
	for _, dir := range []string{host, here} {
		if left, err := filepath.Glob(dir + "/.drover*"); err != nil || len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	c := startCopy(t, d, src, "web-01:/tmp/outside")
	if err := c.cmd.Wait(); err == nil || c.cmd.ProcessState.ExitCode() != 255 || !strings.Contains(c.errs.String(), "outside_root") {
		t.Errorf("outside the root: %v, %s", err, c.errs.String())
	}
}

// cutAt cuts the proxy's connections once a tenth of the file has come to where it's kept.
func cutAt(t *testing.T, proxy *fault.Proxy, pattern string, size int64) {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, "a tenth of the file is there", func() bool {
		parts, err := filepath.Glob(pattern)
		if err != nil || len(parts) != 1 {
			return false
		}
		info, err := os.Stat(parts[0])
		return err == nil && info.Size() > size/10
	})
	proxy.Cut()
}

// TestASlowReaderCostsNoMemory reads a sparse file of 1 GiB, slowly at first: what the client
// doesn't take, neither side reads on.
func TestASlowReaderCostsNoMemory(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	dir := t.TempDir()
	host := d.Host("web-01", "--root", dir)
	const size = 1 << 30
	if err := os.WriteFile(dir+"/sparse", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(dir+"/sparse", size); err != nil {
		t.Fatal(err)
	}
	before := map[*harness.Process]int64{d.Server: peakMemory(t, d.Server), host: peakMemory(t, host)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL+"/api/v1/agents/web-01/files?path="+dir+"/sparse", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.Admin)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.CopyN(io.Discard, resp.Body, 1<<20); err != nil {
		t.Fatal(err)
	}
	// While nothing is taken, other calls on the same agent go on.
	for range 20 {
		began := time.Now()
		if _, got := d.REST(d.Admin).Call("web-01", "fs_list", map[string]any{"path": dir}); got.State != "succeeded" {
			t.Fatalf("beside it: %+v after %s", got, time.Since(began))
		}
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size-1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	for p, was := range before {
		if grown := peakMemory(t, p) - was; grown > 50<<20 {
			t.Errorf("%s grew by %d MiB", filepath.Base(p.Cmd.Path), grown>>20)
		}
	}
}

// TestFilesOfAnAgentThatIsNotThere covers what a transfer meets on its way to an agent.
func TestFilesOfAnAgentThatIsNotThere(t *testing.T) {
	f := harness.New(t, harness.Options{})
	dir := t.TempDir()
	a := f.Agent("web-01", func(c *agent.Config) { c.Roots = []string{dir} })
	rest := f.REST(f.Admin)
	path := "/api/v1/agents/web-01/files?path=" + dir + "/f"
	if status, b := rest.Do("PUT", path, "hello"); status != http.StatusCreated {
		t.Fatalf("HTTP %d %s", status, b)
	}
	if status, b := rest.Do("GET", path, ""); status != http.StatusOK || string(b) != "hello" {
		t.Errorf("HTTP %d %s", status, b)
	}
	if status, b := rest.Do("PUT", path+"&if_sha256=absent", "other"); status != http.StatusPreconditionFailed {
		t.Errorf("HTTP %d %s", status, b)
	}
	a.Stop()
	a.WaitOffline()
	for _, method := range []string{"GET", "PUT"} {
		if status, b := rest.Do(method, path, ""); status != http.StatusServiceUnavailable || !strings.Contains(string(b), `"offline"`) {
			t.Errorf("%s: HTTP %d %s", method, status, b)
		}
	}
	if b, err := os.ReadFile(dir + "/f"); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// peakMemory is the most memory that a process has had resident, in bytes.
func peakMemory(t *testing.T, p *harness.Process) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Cmd.Process.Pid), "status"))
	_, after, ok := strings.Cut(string(b), "VmHWM:")
	testenv.Require(t, err == nil && ok, "this system doesn't tell a process's memory (/proc/PID/status)")
	kib, err := strconv.ParseInt(strings.TrimSpace(strings.Split(after, "kB")[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
