//go:build linux || darwin

package wsconn_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/protocol/wsconn"
)

// Both ends' sockets take at most 128 KiB that the system hasn't sent yet, over TLS, too.
func TestSocketsKeepLittleUnsent(t *testing.T) {
	for _, tls := range []bool{false, true} {
		var accepted, dialled net.Conn
		got := make(chan *wsconn.Conn, 1)
		ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := wsconn.Accept(w, r)
			if err != nil {
				t.Error(err)
			}
			got <- c
		}))
		ts.Config.ConnState = func(c net.Conn, s http.ConnState) {
			if s == http.StateNew {
				accepted = c
			}
		}
		if tls {
			ts.StartTLS()
		} else {
			ts.Start()
		}
		client := ts.Client()
		transport := client.Transport.(*http.Transport)
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			dialled = c
			return c, err
		}
		c, err := wsconn.Dial(t.Context(), ts.URL, client, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := <-got
		if t, ok := accepted.(interface{ NetConn() net.Conn }); ok {
			accepted = t.NetConn()
		}
		for end, conn := range map[string]net.Conn{"server": accepted, "agent": dialled} {
			raw, err := conn.(syscall.Conn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := raw.Control(func(fd uintptr) { n, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT) }); err != nil {
				t.Fatal(err)
			}
			if err != nil || n != 128<<10 {
				t.Errorf("tls %t, %s: %d bytes, %v", tls, end, n, err)
			}
		}
		_ = c.Close(0, "")
		_ = s.Close(0, "")
		ts.Close()
	}
}
