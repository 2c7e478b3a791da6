package proxy

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// TestIdleBehindNginx (T-04, scaled): a tunnel that nobody uses outlives a proxy's idle
// timeout many times over, for its keep-alive is shorter. With one that is longer the proxy
// cuts it every time: the agent says so once, and tries less and less often.
func TestIdleBehindNginx(t *testing.T) {
	t.Parallel()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	testenv.Require(t, err == nil, "there's no nginx: install Debian's nginx-light")
	const idle = 2 * time.Second
	changes := map[string]string{"proxy_read_timeout 10m": "proxy_read_timeout 2s", "proxy_send_timeout 10m": "proxy_send_timeout 2s"}
	start := func(t *testing.T, keepAlive time.Duration) (*harness.Fleet, *harness.Process) {
		t.Helper()
		f := harness.New(t, harness.Options{KeepAlive: keepAlive})
		dir := t.TempDir()
		ca := certificate(t, dir)
		address := startNginx(t, nginx, dir, strings.TrimPrefix(f.URL, "http://"), changes)
		metricsStatus(t, throughProxy(address, ca), publicName) // nginx is there
		token := f.EnrolToken("web-01", nil, false)
		p := harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + token}, harness.Build(t, "").Path("drover-agent"), "run",
			"--server", "https://"+address, "--state", filepath.Join(t.TempDir(), "state"), "--ca-file", filepath.Join(dir, "cert.pem"))
		f.WaitState("web-01", "online")
		return f, p
	}
	t.Run("a shorter keep-alive", func(t *testing.T) {
		t.Parallel()
		f, p := start(t, idle/4)
		select {
		case <-p.Gone:
			t.Fatalf("the agent has ended: %v", p.Err)
		case <-time.After(6 * idle):
		}
		if n := strings.Count(string(p.Log()), "msg=connected"); n != 1 || strings.Contains(string(p.Log()), "not connected") {
			t.Errorf("it connected %d times:\n%s", n, p.Log())
		}
		if _, res := f.REST(f.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo hi"}); res.Stdout() != "hi\n" {
			t.Errorf("%+v %+v", res, res.Error)
		}
	})
	t.Run("a longer keep-alive", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		f, p := start(t, 3*idle)
		says(t, p, "cut again and again", "idle timeout")
		harness.Eventually(t, 90*time.Second, "six connections", func() bool { return connections(t, f) >= 6 })
		if d := time.Since(began); d < 5*idle+3*time.Second {
			t.Errorf("six connections within %s: it doesn't try less often", d)
		}
		if n := strings.Count(string(p.Log()), "level=WARN"); n > 2+strings.Count(string(p.Log()), "administrator") {
			t.Errorf("%d warnings:\n%s", n, p.Log())
		}
	})
}

// connections is how many the agent has had: its epoch counts them, above the store's
// incarnation.
func connections(t *testing.T, f *harness.Fleet) (n int64) {
	t.Helper()
	if err := f.Store().QueryRowContext(t.Context(), "SELECT epoch FROM agents WHERE id = 'web-01'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n & (1<<32 - 1)
}
