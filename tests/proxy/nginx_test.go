// Package proxy runs Drover behind the proxies that docs/deploy.md shows, with the
// configuration that it shows.
package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const publicName = "drover.example.org"

// TestBehindNginx runs server and agent with TLS through the nginx configuration of
// docs/deploy.md: the tunnel, MCP in both eras with progress while the call runs, and REST
// with a large body.
func TestBehindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	testenv.Require(t, err == nil, "there's no nginx: install Debian's nginx-light")

	s := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Flags: []string{"--public-url", "https://" + publicName}})
	dir := t.TempDir()
	ca := certificate(t, dir)
	address := startNginx(t, nginx, dir, strings.TrimPrefix(s.URL, "http://"), nil)
	client := throughProxy(address, ca)
	pat := s.Run("pat", "create", "--name", "behind", "--agents", "all", "--tools", "all")
	s.HostAt("web-01", "https://"+address, nil, "--ca-file", filepath.Join(dir, "cert.pem"))
	online(t, client, pat)

	for _, era := range []string{"2026-07-28", "2025-11-25"} {
		t.Run("mcp "+era, func(t *testing.T) { callWithProgress(t, client, pat, era) })
	}
	t.Run("rest", func(t *testing.T) {
		stdin := strings.Repeat("0123456789abcdef", 8<<10) // 128 KiB
		status, body := post(t, client, pat, fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","args":{"command":"wc -c","stdin":%q}}`, stdin))
		if status != http.StatusOK || !strings.Contains(body, "131072") {
			t.Errorf("%d %s", status, body)
		}
	})
	t.Run("another name", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+publicName+"/api/v1/whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example"
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("a foreign Host got status %d", res.StatusCode)
		}
	})
}

// TestMetricsBehindNginx: the page is open on the server's own machine, and to nobody behind
// a proxy there, whatever Host they send: with the document's configuration, and by Drover
// itself with one that lacks what it says of the page.
func TestMetricsBehindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	testenv.Require(t, err == nil, "there's no nginx: install Debian's nginx-light")

	s := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Flags: []string{"--public-url", "https://" + publicName}})
	local, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	_ = local.Body.Close()
	if local.StatusCode != http.StatusOK {
		t.Errorf("on the machine itself: status %d", local.StatusCode)
	}
	const denied, forwarded = "location = /metrics { return 403; }", "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
	for _, c := range []struct {
		name    string
		without []string
		want    map[string]int // by Host
	}{
		{"as documented", nil, map[string]int{publicName: 403, "localhost": 403, "127.0.0.1:7400": 403}},
		{"without the refusal", []string{denied}, map[string]int{publicName: 401, "localhost": 401, "127.0.0.1:7400": 401}},
		{"without a word of forwarding", []string{denied, forwarded}, map[string]int{publicName: 401}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			ca := certificate(t, dir)
			client := throughProxy(startNginx(t, nginx, dir, strings.TrimPrefix(s.URL, "http://"), without(c.without)), ca)
			for host, want := range c.want {
				if got := metricsStatus(t, client, host); got != want {
					t.Errorf("Host %s: status %d, want %d", host, got, want)
				}
			}
		})
	}
}

// metricsStatus asks for /metrics under a Host, once nginx is there.
func metricsStatus(t *testing.T, client *http.Client, host string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+publicName+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
			return res.StatusCode
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// without are changes that take directives away.
func without(directives []string) map[string]string {
	out := map[string]string{}
	for _, d := range directives {
		out[d] = ""
	}
	return out
}

// startNginx runs nginx with the block of the document, changed as said, on a port of its
// own.
func startNginx(t *testing.T, nginx, dir, backend string, changes map[string]string) (address string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```nginx\n")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/deploy.md has no nginx block")
	}
	address = freeAddress(t)
	replace := map[string]string{
		"127.0.0.1:7400":                  backend,
		"listen 443 ssl http2":            "listen " + address + " ssl http2",
		"/etc/ssl/" + publicName + ".pem": filepath.Join(dir, "cert.pem"),
		"/etc/ssl/" + publicName + ".key": filepath.Join(dir, "key.pem"),
	}
	maps.Copy(replace, changes)
	for old, now := range replace {
		if strings.Count(block, old) != 1 {
			t.Fatalf("the nginx block doesn't have %q once", old)
		}
		block = strings.Replace(block, old, now, 1)
	}
	runNginx(t, nginx, dir, block)
	return address
}

// freeAddress is one that was free a moment ago: nginx can't be asked for port 0.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// runNginx runs nginx with what its http block holds.
func runNginx(t *testing.T, nginx, dir, block string) {
	t.Helper()
	conf := fmt.Sprintf("pid %[1]s/pid;\nerror_log %[1]s/error.log;\nworker_processes 1;\nevents {}\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/b;\nproxy_temp_path %[1]s/p;\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n%[2]s}\n", dir, block)
	if os.Geteuid() == 0 {
		conf = "user root;\n" + conf
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Logf("nginx: %s", log)
		}
	})
	harness.Start(t, nil, nginx, "-c", file, "-p", dir, "-e", filepath.Join(dir, "error.log"), "-g", "daemon off;")
}

// certificate makes one for the public name and loopback, as cert.pem and key.pem, that's
// good for an hour.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	return certificateUntil(t, dir, time.Now().Add(time.Hour))
}

func certificateUntil(t *testing.T, dir string, until time.Time) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		DNSNames: []string{publicName}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

// throughProxy reaches the public name at the proxy's address.
func throughProxy(address string, ca *x509.CertPool) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return &http.Client{Transport: &http.Transport{
		DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: ca, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}}
}

// online waits until a call reaches the agent.
func online(t *testing.T, client *http.Client, pat string) {
	t.Helper()
	var status int
	var body string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		status, body = post(t, client, pat, `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"true"}}`)
		if status == http.StatusOK {
			return
		}
	}
	t.Fatalf("the agent never came online: %d %s", status, body)
}

func post(t *testing.T, client *http.Client, pat, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+publicName+"/api/v1/calls", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+pat)
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error() // nginx may still be starting
	}
	defer func() { _ = res.Body.Close() }()
	var out bytes.Buffer
	if _, err := out.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, out.String()
}

type bearer struct {
	pat  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.pat)
	return b.next.RoundTrip(r)
}

// callWithProgress makes a call that can end only after its progress was seen: a proxy
// that buffers answers would hold the progress back until the call times out.
func callWithProgress(t *testing.T, client *http.Client, pat, era string) {
	release := filepath.Join(t.TempDir(), "release")
	seen := make(chan string, 1)
	c := mcp.NewClient(&mcp.Implementation{Name: "proxy-test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			select {
			case seen <- r.Params.Message:
			default:
			}
		},
	})
	transport := &mcp.StreamableClientTransport{
		Endpoint: "https://" + publicName + "/mcp", HTTPClient: &http.Client{Transport: bearer{pat, client.Transport}},
	}
	session, err := c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: era})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()

	params := &mcp.CallToolParams{Name: "shell_exec", Arguments: map[string]any{
		"agent_id": "web-01", "command": "until [ -e '" + release + "' ]; do sleep 0.05; done; echo $DROVER_AGENT_ID", "timeout_seconds": 30,
	}}
	params.SetProgressToken("p1")
	ended := make(chan error, 1)
	var res *mcp.CallToolResult
	go func() {
		var err error
		res, err = session.CallTool(t.Context(), params)
		ended <- err
	}()
	select {
	case msg := <-seen:
		t.Logf("progress: %s", msg)
	case err := <-ended:
		t.Fatalf("the call ended before its progress came: %v %v", res, err)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if text := res.Content[0].(*mcp.TextContent).Text; res.IsError || !strings.Contains(text, "\nweb-01") {
		t.Errorf("the result is %q", text)
	}
}
