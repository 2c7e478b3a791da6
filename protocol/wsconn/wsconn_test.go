package wsconn_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

var _ mux.Pipe = (*wsconn.Conn)(nil)

func connect(t testing.TB) (server, client *wsconn.Conn) {
	t.Helper()
	got := make(chan *wsconn.Conn, 1)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/base"+wsconn.Path {
			t.Errorf("path %s", r.URL.Path)
		}
		c, err := wsconn.Accept(w, r)
		if err != nil {
			t.Error(err)
		}
		got <- c
	}))
	t.Cleanup(ts.Close)
	client, err := wsconn.Dial(t.Context(), ts.URL+"/base/", http.DefaultClient, nil)
	if err != nil {
		t.Fatal(err)
	}
	server = <-got
	t.Cleanup(func() { _ = client.Close(0, ""); _ = server.Close(0, "") })
	return server, client
}

func TestMessages(t *testing.T) {
	s, c := connect(t)
	s.Established()
	c.Established()
	ctx := t.Context()
	for _, n := range []int{0, 1, 125, 126, 511, 512, 513, 1020, 1023, 1024, 1025, 3000, 4096, 16384, protocol.MaxChunk + protocol.ChunkHeader} {
		want := bytes.Repeat([]byte{'a' + byte(n%26)}, n)
		for _, binary := range []bool{true, false} {
			for _, way := range []struct{ from, to *wsconn.Conn }{{c, s}, {s, c}} {
				if err := way.from.Write(ctx, binary, want); err != nil {
					t.Fatal(err)
				}
				bin, got, err := way.to.Read(ctx)
				if err != nil || bin != binary || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes, binary %t: %t, %d bytes, %v", n, binary, bin, len(got), err)
				}
			}
		}
	}
}

func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		established bool
		size        int
		ok          bool
	}{
		"before, at the limit": {false, protocol.MaxHello, true}, "before, above it": {false, protocol.MaxHello + 1, false},
		"after, at the limit": {true, protocol.MaxMessage + protocol.ChunkHeader, true}, "after, above it": {true, protocol.MaxMessage + protocol.ChunkHeader + 1, false},
		"far above": {true, 1 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, cl := connect(t)
			if c.established {
				s.Established()
			}
			wrote := make(chan error, 1)
			go func() { wrote <- cl.Write(context.Background(), false, make([]byte, c.size)) }()
			_, got, err := s.Read(t.Context())
			if c.ok && (err != nil || len(got) != c.size) || !c.ok && !errors.Is(err, protocol.ErrTooBig) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if !c.ok {
				var ce *protocol.CloseError
				if _, _, err := cl.Read(t.Context()); !errors.As(err, &ce) || ce.Code != 1009 {
					t.Errorf("the sender was told %v", err)
				}
			}
			<-wrote
		})
	}
}

func TestCloseCodeArrives(t *testing.T) {
	s, c := connect(t)
	done := make(chan error, 1)
	go func() { _, _, err := c.Read(context.Background()); done <- err }()
	if err := s.Close(protocol.CloseViolation, "bad frame"); err != nil {
		t.Error(err)
	}
	var ce *protocol.CloseError
	if err := <-done; !errors.As(err, &ce) || ce.Code != protocol.CloseViolation || ce.Reason != "bad frame" {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsAReadAndAWrite(t *testing.T) {
	s, _ := connect(t)
	ended := make(chan struct{}, 2)
	go func() { _, _, _ = s.Read(context.Background()); ended <- struct{}{} }()
	go func() { // the client doesn't read: this gets stuck
		for s.Write(context.Background(), true, make([]byte, 16<<10)) == nil {
		}
		ended <- struct{}{}
	}()
	_ = s.Close(0, "")
	<-ended
	<-ended
}

func TestDialErrors(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/busy" + wsconn.Path:
			w.Header().Set("Retry-After", "7")
			http.Error(w, "come back\x1b[2J", http.StatusServiceUnavailable)
		case "/moved" + wsconn.Path:
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		default:
			t.Errorf("asked for %s", r.URL)
		}
	}))
	defer ts.Close()
	var de *wsconn.DialError
	if _, err := wsconn.Dial(t.Context(), ts.URL+"/busy", http.DefaultClient, nil); !errors.As(err, &de) || de.Status != 503 || de.RetryAfter != 7*time.Second || de.Body != `come back\x1b[2J` {
		t.Errorf("busy: %v", err)
	}
	if _, err := wsconn.Dial(t.Context(), ts.URL+"/moved", http.DefaultClient, nil); !errors.As(err, &de) || de.Status != 302 {
		t.Errorf("redirect: %v", err)
	}
	for _, url := range []string{"ftp://x", "drover.example.com", "https://", "https://a:b@x", "http://x?y=1", "://"} {
		if _, err := wsconn.Dial(t.Context(), url, http.DefaultClient, nil); err == nil {
			t.Errorf("%s was dialled", url)
		}
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:7400": "ws://127.0.0.1:7400/agent/v1/tunnel", "https://d.example.com/": "wss://d.example.com/agent/v1/tunnel",
		"wss://d.example.com/x/": "wss://d.example.com/x/agent/v1/tunnel", "ws://h": "ws://h/agent/v1/tunnel",
	} {
		if got, err := wsconn.URL(in); err != nil || got != want {
			t.Errorf("%s: %s %v", in, got, err)
		}
	}
}

func TestForeignOriginIsRefused(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := wsconn.Accept(w, r); err == nil {
			_ = c.Close(0, "")
		}
	}))
	defer ts.Close()
	var de *wsconn.DialError
	_, err := wsconn.Dial(t.Context(), ts.URL, http.DefaultClient, http.Header{"Origin": {"https://evil.example"}})
	if !errors.As(err, &de) || de.Status != 403 || strings.Contains(de.Body, "\n") {
		t.Errorf("got %v", err)
	}
}

// TestCloseIsBounded: a peer that announces a message of a terabyte and stops sending in the
// middle of it doesn't keep the connection, or whoever closes it.
func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	server, client := make(chan *wsconn.Conn, 1), make(chan net.Conn, 1)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := wsconn.Accept(w, r)
		if err != nil {
			t.Error(err)
		}
		server <- c
	}))
	defer ts.Close()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		client <- c
		return c, err
	}
	c, err := wsconn.Dial(t.Context(), ts.URL, &http.Client{Transport: &http.Transport{DialContext: dial}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(0, "") }()
	s, raw := <-server, <-client
	head := binary.BigEndian.AppendUint64([]byte{0x81, 0x80 | 127}, 1<<40) // text, final; masked, long
	if _, err := raw.Write(append(head, make([]byte, 4+4*protocol.MaxHello)...)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Read(t.Context()); !errors.Is(err, protocol.ErrTooBig) {
		t.Fatalf("read: %v", err)
	}
	began := time.Now()
	_ = s.Close(protocol.CloseViolation, "too big") // that it fails is the peer's doing
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("closing took %s", took)
	}
}
