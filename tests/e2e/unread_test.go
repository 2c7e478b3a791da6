package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// unread is a request whose client has read the answer's header and reads no more.
type unread struct {
	conn net.Conn
	resp *http.Response
	last bool // no other answer comes behind it
}

// askUnread sends a request so many times, without waiting for an answer, over a connection that takes little, and waits until the server
// hangs in the write of its answer.
func askUnread(t *testing.T, f *harness.Fleet, request string, times int) *unread {
	t.Helper()
	addr := strings.TrimPrefix(f.URL, "http://")
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(request, "\n\n")
	head = strings.ReplaceAll(head, "\n", "\r\n")
	whole := fmt.Sprintf("%s\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", head, addr, len(body), body)
	if _, err := io.WriteString(conn, strings.Repeat(whole, times)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("HTTP %d %s", resp.StatusCode, b)
	}
	harness.Eventually(t, 20*time.Second, "the server hangs in its write", func() bool { return hanging() > 0 })
	return &unread{conn, resp, times == 1}
}

// download is the request for a file.
func download(credential, path string) string {
	return "GET /api/v1/agents/web-01/files?path=" + path + " HTTP/1.1\n" + credential
}

// hanging counts the goroutines of this process, the server's among them, that wait in the
// write of an answer.
func hanging() (n int) {
	for g := range strings.SplitSeq(stacks(), "\n\n") {
		first, _, _ := strings.Cut(g, "\n")
		if strings.Contains(first, "[IO wait") && strings.Contains(g, "net/http.(*response)") && strings.Contains(g, "boundedWriter") {
			n++
		}
	}
	return n
}

// stacks are the goroutines of this process.
func stacks() string {
	b := make([]byte, 8<<20)
	return string(b[:runtime.Stack(b, true)])
}

// ends fails the test unless the server gives the answer up within five seconds, and what's left
// of it comes to an end that's no whole answer.
func (u *unread) ends(t *testing.T, since time.Time) {
	t.Helper()
	harness.Eventually(t, 5*time.Second-time.Since(since), "no write hangs any more", func() bool { return hanging() == 0 })
	t.Logf("the write ended after %s", time.Since(since).Round(10*time.Millisecond))
	if !u.last {
		return
	}
	// What's on the way comes through quickly from here on, and then the end.
	_ = u.conn.(*net.TCPConn).SetReadBuffer(4 << 20)
	_ = u.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := io.Copy(io.Discard, u.resp.Body); err == nil {
		t.Errorf("the answer ended in order after %d bytes", n)
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the connection is open")
	}
}

// twoFiles are one of 256 MiB, and one that says small.
func twoFiles(t *testing.T) (large, small string) {
	t.Helper()
	dir := t.TempDir()
	large, small = filepath.Join(dir, "f"), filepath.Join(dir, "small")
	for name, content := range map[string]string{large: "", small: "small"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(large, 256<<20); err != nil {
		t.Fatal(err)
	}
	return large, small
}

// signedIn is a cookie of the page's.
func signedIn(t *testing.T, f *harness.Fleet) (cookie string) {
	t.Helper()
	status, header, b := f.REST("").Whole("POST", "/api/v1/session", `{"pat":"`+f.Admin+`"}`)
	if status != http.StatusNoContent {
		t.Fatalf("sign-in: HTTP %d %s", status, b)
	}
	cookie, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	return cookie
}

func signOut(t *testing.T, f *harness.Fleet, cookie string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, f.URL+"/api/v1/session", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", cookie)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// TestAnUnreadDownloadEndsWithItsRight: a download whose client has stopped reading ends within
// five seconds when its right does, or the call, or the server; the record says why, and
// nothing is held any more, here or on the host.
func TestAnUnreadDownloadEndsWithItsRight(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	file, small := twoFiles(t)
	admin := f.REST(f.Admin)
	do := func(method, path, body string) {
		t.Helper()
		if status, b := admin.Do(method, path, body); status/100 != 2 {
			t.Fatalf("%s %s: HTTP %d %s", method, path, status, b)
		}
	}
	bearer := func(token string) string { return "Authorization: Bearer " + token }
	granted := func() (credential, id string) {
		do("PATCH", "/api/v1/agents/web-01", `{"labels":{"env":"lab"}}`)
		token, id := f.PAT("doomed", "env=lab", "all", false)
		return bearer(token), id
	}
	var expires time.Time // of the credential, where that's what ends it
	for _, c := range []struct {
		name  string
		begin func() (credential string, end func(call string))
		why   string // in the recorded error
	}{
		{"revoked", func() (string, func(string)) {
			credential, id := granted()
			return credential, func(string) { do("DELETE", "/api/v1/pats/"+id, "") }
		}, "the right to it ended"},
		{"expired", func() (string, func(string)) {
			var pat struct {
				Token     string    `json:"token"`
				ExpiresAt time.Time `json:"expires_at"`
			}
			admin.JSON("POST", "/api/v1/pats", map[string]any{"name": "short", "grant": map[string]any{"agents": map[string]any{"all": true}, "tools": map[string]any{"all": true}}, "ttl_seconds": 8}, &pat)
			expires = pat.ExpiresAt
			return bearer(pat.Token), func(string) {}
		}, "the right to it ended"},
		{"out of scope", func() (string, func(string)) {
			credential, _ := granted()
			return credential, func(string) { do("PATCH", "/api/v1/agents/web-01", `{"labels":{"env":"prod"}}`) }
		}, "the right to it ended"},
		{"signed out", func() (string, func(string)) {
			cookie := signedIn(t, f)
			return "Cookie: " + cookie, func(string) { signOut(t, f, cookie) }
		}, "the right to it ended"},
		{"cancelled", func() (string, func(string)) {
			return bearer(f.Admin), func(call string) { go admin.Do("POST", "/api/v1/calls/"+call+"/cancel", "") }
		}, "cancelled by its caller"},
		{"the server stops", func() (string, func(string)) {
			return bearer(f.Admin), func(string) { f.Stop() }
		}, ""},
		{"the agent is removed", func() (string, func(string)) {
			return bearer(f.Admin), func(string) { go admin.Do("DELETE", "/api/v1/agents/web-01", "") }
		}, "the right to it ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expires = time.Time{}
			credential, end := c.begin()
			u := askUnread(t, f, download(credential, file), 1)
			call := u.resp.Header.Get("Drover-Call-Id")
			began := time.Now()
			if expires.After(began) {
				began = expires
			}
			end(call)
			if took := time.Since(began); took > 4*time.Second { // the server's DrainTimeout is two
				t.Errorf("the server stopped after %s", took)
			}
			u.ends(t, began)
			if c.name == "the server stops" {
				f.Start(strings.TrimPrefix(f.URL, "http://"))
			}
			var res harness.CallResult
			harness.Eventually(t, 10*time.Second, "the call's end is on record", func() bool {
				admin.JSON("GET", "/api/v1/calls/"+call, nil, &res)
				return res.State != "running" && res.State != "dispatched"
			})
			if c.name == "the server stops" { // who says it first: the server that it's cancelled, or the host that it's cut
				if res.State != "cancelled" && (res.State != "failed" || res.Error.Reason != "cut") {
					t.Errorf("%s %+v", res.State, res.Error)
				}
			} else if res.State != "cancelled" || res.Error == nil || !strings.Contains(res.Error.Message, c.why) || res.Error.Reason == "client_gone" {
				t.Errorf("%s %+v", res.State, res.Error)
			}
			if c.name != "the agent is removed" {
				f.WaitState("web-01", "online")
				if status, b := admin.Do("GET", "/api/v1/agents/web-01/files?path="+small, ""); status != http.StatusOK || string(b) != "small" {
					t.Errorf("the next download: HTTP %d %s", status, b)
				}
			}
			harness.Eventually(t, 5*time.Second, "nothing is left of it on the host", func() bool { return !strings.Contains(stacks(), "fsDownload") })
			if _, b := admin.Do("GET", "/metrics", ""); !strings.Contains(string(b), "\ndrover_calls_open 0\n") {
				t.Error("a call is open")
			}
		})
	}
}

// TestAnUnreadAnswerEndsWithItsCredential: so does an answer of MCP, in and outside a session, and
// one of REST, that its client has stopped reading.
func TestAnUnreadAnswerEndsWithItsCredential(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, append([]byte("\x89PNG\r\n\x1a\n"), make([]byte, 740_000)...), 0o600); err != nil {
		t.Fatal(err)
	}
	post := func(token, more string) string {
		return "POST /mcp HTTP/1.1\nAuthorization: Bearer " + token + more + `
Content-Type: application/json
Accept: application/json, text/event-stream
Mcp-Protocol-Version: 2025-11-25

{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fs_read","arguments":{"agent_id":"web-01","path":"` + image + `"}}}`
	}
	for name, request := range map[string]func(token string) string{
		"MCP": func(token string) string { return post(token, "") },
		"MCP, a session": func(token string) string {
			resp, _ := f.PostMCP(token, harness.Legacy, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"unread","version":"1"}}}`)
			session := resp.Header.Get("Mcp-Session-Id")
			f.PostMCP(token, harness.Legacy, http.Header{"Mcp-Session-Id": {session}}, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			return post(token, "\nMcp-Session-Id: "+session)
		},
		"REST": func(token string) string {
			_, res := f.REST(token).Call("web-01", "fs_read", map[string]any{"path": image})
			return "GET /api/v1/calls/" + res.CallID + " HTTP/1.1\nAuthorization: Bearer " + token
		},
	} {
		t.Run(name, func(t *testing.T) {
			token, id := f.PAT("doomed", "all", "all", false)
			u := askUnread(t, f, request(token), 12)
			began := time.Now()
			if status, b := f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status/100 != 2 {
				t.Fatalf("HTTP %d %s", status, b)
			}
			u.ends(t, began)
		})
	}
}
