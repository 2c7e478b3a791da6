package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// What a connectProxy does with who asks it for a way.
const (
	opens   = iota // it makes the connection, for who has its password
	fails          // 502
	babbles        // something that isn't HTTP
	hangs          // nothing
)

// connectProxy is an HTTP proxy that leads every name to one address.
type connectProxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	mode     int
	password string // of the user "fleet"; "" for none
	conns    map[net.Conn]bool
	asked    []string // the hosts it was asked for
}

func startProxy(t *testing.T, target string) *connectProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &connectProxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); p.set(func() {}) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

// url is what agents are given, with a password ("" for none).
func (p *connectProxy) url(password string) string {
	if password != "" {
		password = "fleet:" + password + "@"
	}
	return "http://" + password + p.listener.Addr().String()
}

// set changes how it behaves and cuts all connections.
func (p *connectProxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *connectProxy) hosts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

// hold remembers a connection until it ends.
func (p *connectProxy) hold(c net.Conn) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return func() {
		_ = c.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}
}

func (p *connectProxy) serve(c net.Conn) {
	defer p.hold(c)()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, r.Host)
	mode, password := p.mode, p.password
	p.mu.Unlock()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("fleet:"+password))
	switch {
	case mode == hangs:
		_, _ = io.Copy(io.Discard, in)
	case mode == babbles:
		_, _ = io.WriteString(c, "220 mail.example.org ESMTP\r\n")
	case mode == fails:
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
	case password != "" && r.Header.Get("Proxy-Authorization") != want:
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n")
	case r.Method == http.MethodConnect:
		there, err := net.Dial("tcp", p.target)
		if err != nil {
			return
		}
		defer p.hold(there)()
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { _, _ = io.Copy(there, in); _ = there.Close() }()
		_, _ = io.Copy(c, there)
	}
}

// startTLS puts a server with TLS, whose certificate is in dir, before a server.
func startTLS(t *testing.T, dir, backend string) (address string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(backend)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: httputil.NewSingleHostReverseProxy(to), ReadHeaderTimeout: time.Minute}
	s.ErrorLog = nil
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// agentWith starts an agent that isn't enrolled, with this environment.
func agentWith(t *testing.T, d *harness.Deployment, id, server string, env []string, flags ...string) *harness.Process {
	t.Helper()
	// Those of the test's own environment don't count.
	env = append([]string{"HTTPS_PROXY=", "https_proxy=", "HTTP_PROXY=", "http_proxy=", "NO_PROXY=", "no_proxy=",
		"DROVER_ENROLL_TOKEN=" + d.EnrolToken(id, nil, false)}, env...)
	flags = append([]string{"run", "--server", server, "--state", filepath.Join(t.TempDir(), "state")}, flags...)
	return harness.Start(t, env, d.Programs.Path("drover-agent"), flags...)
}

// says waits until an agent's log has a line with all of these.
func says(t *testing.T, p *harness.Process, words ...string) {
	t.Helper()
	harness.Eventually(t, 60*time.Second, fmt.Sprintf("the agent says %q", words), func() bool {
	lines:
		for line := range strings.SplitSeq(string(p.Log()), "\n") {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return true
		}
		return false
	})
}

// TestConnectProxies: enrolment and tunnel go through the HTTP proxy that HTTPS_PROXY names,
// with its user and password. One that refuses, fails, babbles or hangs is named with what
// to do, and the agent is there as soon as it works.
func TestConnectProxies(t *testing.T) {
	t.Parallel()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	dir := t.TempDir()
	certificate(t, dir)
	front := startTLS(t, dir, d.URL)
	for name, c := range map[string]struct {
		broken func(p *connectProxy)
		says   []string
	}{
		"another password": {func(p *connectProxy) { p.password = "changed" }, []string{"wants a user and a password", "HTTPS_PROXY"}},
		"502":              {func(p *connectProxy) { p.mode = fails }, []string{"opens no way to the server (status 502", "NO_PROXY"}},
		"garbage":          {func(p *connectProxy) { p.mode = babbles }, []string{"through the proxy", "malformed HTTP"}},
		"silence":          {func(p *connectProxy) { p.mode = hangs }, []string{"through the proxy", "deadline exceeded"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := strings.ReplaceAll(name, " ", "-")
			p := startProxy(t, front)
			works := func() { p.mode, p.password = opens, "s3cret" }
			p.set(works)
			p.set(func() { c.broken(p) })
			a := agentWith(t, d, id, "https://"+publicName, []string{"HTTPS_PROXY=" + p.url("s3cret")}, "--ca-file", filepath.Join(dir, "cert.pem"))
			says(t, a, append([]string{"can't enrol yet", p.listener.Addr().String()}, c.says...)...)
			p.set(works)
			d.WaitState(id, "online")
			if _, res := d.REST(d.Admin).Call(id, "shell_exec", map[string]any{"command": "echo hi"}); res.Stdout() != "hi\n" {
				t.Errorf("%+v %+v", res, res.Error)
			}
			p.set(func() { c.broken(p) })
			says(t, a, append([]string{"not connected", p.listener.Addr().String()}, c.says...)...)
			p.set(works)
			d.WaitState(id, "online")
			for _, host := range p.hosts() {
				if host != publicName+":443" {
					t.Errorf("the proxy was asked for %q", host)
				}
			}
			if strings.Contains(string(a.Log()), "s3cret") {
				t.Errorf("the proxy's password is in the log:\n%s", a.Log())
			}
		})
	}
	t.Run("NO_PROXY", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, front)
		a := agentWith(t, d, "direct-01", "https://drover.invalid", []string{"HTTPS_PROXY=" + p.url(""), "NO_PROXY=.example.org,drover.invalid"})
		says(t, a, "can't enrol yet", "drover.invalid", "lookup")
		if hosts := p.hosts(); len(hosts) != 0 {
			t.Errorf("the proxy was asked for %q", hosts)
		}
	})
	t.Run("plain http", func(t *testing.T) {
		t.Parallel()
		p := startProxy(t, front)
		p.set(func() { p.password = "s3cret" })
		a := agentWith(t, d, "plain-01", "http://"+publicName, []string{"HTTP_PROXY=" + p.url("wrong")}, "--plaintext")
		says(t, a, "can't enrol yet", p.listener.Addr().String(), "wants a user and a password")
	})
}

// TestCertificates: --ca-file names the only authorities that count, SSL_CERT_FILE stands in
// for the host's own; a certificate that isn't trusted is refused with what to do about it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	good, other, expired := t.TempDir(), t.TempDir(), t.TempDir()
	certificate(t, good)
	certificate(t, other)
	certificateUntil(t, expired, time.Now().Add(-time.Minute))
	pem := func(dir string) string { return filepath.Join(dir, "cert.pem") }
	front, past := "https://"+startTLS(t, good, d.URL), "https://"+startTLS(t, expired, d.URL)
	for id, c := range map[string]struct {
		server string
		env    []string
		flags  []string
		says   []string // nil: it comes online
	}{
		"ca-file":          {front, nil, []string{"--ca-file", pem(good)}, nil},
		"ssl-cert-file":    {front, []string{"SSL_CERT_FILE=" + pem(good)}, nil, nil},
		"unknown":          {front, nil, nil, []string{"doesn't know the authority", "--ca-file"}},
		"other-ca-file":    {front, nil, []string{"--ca-file", pem(other)}, []string{"isn't signed by an authority in " + pem(other)}},
		"only-the-ca-file": {front, []string{"SSL_CERT_FILE=" + pem(good)}, []string{"--ca-file", pem(other)}, []string{"no others count"}},
		"other-name":       {strings.Replace(front, "127.0.0.1", "localhost", 1), nil, []string{"--ca-file", pem(good)}, []string{"is for another name", "--server"}},
		"expired":          {past, nil, []string{"--ca-file", pem(expired)}, []string{"by this host's clock it's " + time.Now().UTC().Format("2006-01-02"), "set the clock"}},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			a := agentWith(t, d, id, c.server, c.env, c.flags...)
			if c.says == nil {
				d.WaitState(id, "online")
				return
			}
			says(t, a, append([]string{"can't enrol yet"}, c.says...)...)
			if strings.Contains(string(a.Log()), "msg=connected") {
				t.Errorf("it connected:\n%s", a.Log())
			}
		})
	}
}
