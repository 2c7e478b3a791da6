package wsconn_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/wsconn"
)

// upgrade dials ts without a client's buffers, and asks for the tunnel; more is sent in the
// same segment.
func upgrade(t *testing.T, ts *httptest.Server, more string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n%s", wsconn.Path, more); err != nil {
		t.Fatal(err)
	}
	return c
}

func accepting(t *testing.T, most int) (*httptest.Server, chan *wsconn.Conn) {
	t.Helper()
	got := make(chan *wsconn.Conn, most)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := wsconn.Accept(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		got <- c
	}))
	t.Cleanup(ts.Close)
	return ts, got
}

// TestAHastyClient: what a client sends together with its request isn't lost.
func TestAHastyClient(t *testing.T) {
	ts, got := accepting(t, 1)
	upgrade(t, ts, "\x81\x82\x00\x00\x00\x00hi") // text, final, masked with zeros
	c := <-got
	defer func() { _ = c.Close(0, "") }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if bin, msg, err := c.Read(ctx); err != nil || bin || string(msg) != "hi" {
		t.Errorf("%t %q %v", bin, msg, err)
	}
}

// TestAConnectionHoldsLittle: thousands of agents are connected and say nothing most of the
// time.
func TestAConnectionHoldsLittle(t *testing.T) {
	const n, most = 300, 8 << 10
	ts, got := accepting(t, n)
	all := make([]*wsconn.Conn, 0, n)
	defer func() {
		for _, c := range all {
			_ = c.Close(0, "")
		}
	}()
	before := held()
	for range n {
		upgrade(t, ts, "")
		all = append(all, <-got)
	}
	if each := (held() - before) / n; each > most {
		t.Errorf("a connection holds %d bytes, of at most %d", each, most)
	} else {
		t.Logf("a connection holds %d bytes", each)
	}
	runtime.KeepAlive(all)
}

// held is what lives on the heap, in bytes.
func held() int64 {
	for range 3 { // pools let go of what they have after two
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
