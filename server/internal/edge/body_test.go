package edge

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// pipes is a listener whose connections are in this process, so that a test may rule their time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// dialIn serves h over pipes and returns a client's end; must be called in a bubble.
func dialIn(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	l := &pipes{make(chan net.Conn), make(chan struct{})}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	go func() { _ = srv.Serve(l) }()
	mine, its := net.Pipe()
	l.conns <- its
	t.Cleanup(func() {
		_ = mine.Close()
		_ = srv.Close()
	})
	return mine
}

// answer reads one answer and tells whether the connection was closed behind it.
func answer(t *testing.T, c net.Conn) (status int, body string, closed bool) {
	t.Helper()
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, err = r.ReadByte()
	return resp.StatusCode, string(b), err == io.EOF
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func reading(limit int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := Read(w, r, limit); err != nil {
			WriteError(w, fleet.AsError(err))
		}
	})
}

func TestABodyThatDoesNotArriveIsNotWaitedFor(t *testing.T) {
	const held = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
	const chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
	unauthenticated := UnreadBody(Authenticate(NewServing(func(string) bool { return true }), func(*http.Request) (fleet.Principal, error) { return fleet.Principal{}, nil })(fine(t)))
	for _, c := range []struct {
		name    string
		h       http.Handler
		request string
		status  int
		within  time.Duration
	}{
		{"small", reading(8 << 10), held, 408, 15 * time.Second},
		{"small, chunked", reading(8 << 10), chunked, 408, 15 * time.Second},
		{"large", reading(4 << 20), held, 408, 15 * time.Second},
		{"larger than allowed", UnreadBody(reading(100)), held, 413, 15 * time.Second},
		{"of a principal", bodies(NewBodies(nobodyRevoked)), held, 408, 15 * time.Second},
		{"not read at all", unauthenticated, held, 401, 15 * time.Second},
		{"not read at all, chunked", unauthenticated, chunked, 401, 15 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				conn := dialIn(t, c.h)
				send(t, conn, c.request)
				status, body, closed := answer(t, conn)
				if took := time.Since(start); status != c.status || !closed || took > c.within+2*time.Second {
					t.Errorf("status %d, closed %v, after %s: %s", status, closed, took, body)
				}
				if c.status == 408 && (!strings.Contains(body, `"code":"bad_args"`) || !strings.Contains(body, `"reason":"body_late"`)) {
					t.Errorf("the answer: %s", body)
				}
			})
		})
	}
}

// The deadline of a body must not end the request that waits for its answer, nor the next
// one on the connection.
func TestABodysDeadlineEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialIn(t, UnreadBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := Read(w, r, 8<<10)
			select {
			case <-r.Context().Done():
				t.Errorf("the request ended: %v", context.Cause(r.Context()))
			case <-time.After(10 * time.Minute):
			}
			_, _ = w.Write(body)
			if err != nil {
				t.Error(err)
			}
		})))
		for range 2 {
			send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
			time.Sleep(14 * time.Second) // the bubble's time, which costs none: a slow client
			send(t, conn, "body")
			_ = conn.SetReadDeadline(time.Time{})
			if status, body, closed := answer(t, conn); status != 200 || body != "body" || closed {
				t.Errorf("%d %q, closed %v", status, body, closed)
			}
		}
	})
}

func TestABodyThatBreaksOffIsTheClientsFault(t *testing.T) {
	for name, request := range map[string]string{
		"chunk without length": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialIn(t, reading(8<<10))
				send(t, conn, request)
				status, body, closed := answer(t, conn)
				if status != 400 || !closed || !strings.Contains(body, `"reason":"body_cut"`) {
					t.Errorf("%d, closed %v: %s", status, closed, body)
				}
			})
		})
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:7400": true, "localhost.": true, "127.0.0.1": true, "127.9.9.9:1": true, "[::1]:7400": true, "[::ffff:127.0.0.1]": true,
		"": false, "drover.example.org": false, "localhost.example.org": false, "127.0.0.1.nip.io": false, "10.0.0.1": false, "[::]": false, "0.0.0.0": false,
	} {
		if Loopback(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}

// Who sends a body that's refused, and reads only then, finds the answer that says why: the
// connection isn't reset on what's still on its way. Who sends no end has it for a while.
func TestARefusedBodyIsTakenUntilTheAnswerIsRead(t *testing.T) {
	refuse := UnreadBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := Read(w, r, 100)
		WriteError(w, fleet.AsError(err))
	}))
	for name, head := range map[string]string{
		"of a known size": "Content-Length: 5000000\r\n\r\n",
		"chunked":         "Transfer-Encoding: chunked\r\n\r\n4c4b40\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(refuse)
			defer srv.Close()
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+head); err != nil {
				t.Fatal(err)
			}
			for range 5000 {
				if _, err := conn.Write(make([]byte, 1000)); err != nil {
					t.Fatalf("while the body is sent: %v", err)
				}
			}
			if name == "chunked" {
				send(t, conn, "\r\n0\r\n\r\n")
			}
			if status, body, closed := answer(t, conn); status != http.StatusRequestEntityTooLarge || !strings.Contains(body, "100 bytes") || !closed {
				t.Errorf("%d %s, closed %v", status, body, closed)
			}
		})
	}
	t.Run("without an end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn, start := dialIn(t, refuse), time.Now()
			send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					time.Sleep(time.Second) // the bubble's time, which costs none
					if _, err := io.WriteString(conn, "100\r\n"+strings.Repeat("x", 256)+"\r\n"); err != nil {
						return
					}
				}
			}()
			if status, _, _ := answer(t, conn); status != http.StatusRequestEntityTooLarge || time.Since(start) > 2*time.Second {
				t.Errorf("%d after %s", status, time.Since(start))
			}
			_ = conn.SetReadDeadline(time.Time{})
			if _, err := io.Copy(io.Discard, conn); err != nil {
				t.Errorf("the connection: %v", err)
			}
			<-ended
			if took := time.Since(start); took > lingerAll+lingerPiece+2*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	})
}
