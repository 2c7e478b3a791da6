package tunnel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

func (r *rig) open() *wsconn.Conn {
	r.t.Helper()
	conn, err := wsconn.Dial(r.t.Context(), r.http.URL, http.DefaultClient, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

// An agent with a valid key answers for a call of another host, twice, and late.
func TestAnswersForAnotherHost(t *testing.T) {
	r := newRig(t)
	victim, rogue := r.enrolled("web-01"), r.enrolled("evil-01")
	begun, release := make(chan struct{}), make(chan struct{})
	r.connectWith(victim, func(context.Context, *protocol.Request, func(string)) *protocol.Response {
		close(begun)
		<-release
		return &protocol.Response{Result: []byte(`"from web-01"`)}
	})
	l, _, err := r.dial(rogue)
	if err != nil {
		t.Fatal(err)
	}
	defer l.conn.Close(0, "")
	c, _ := r.presence.Route("web-01", 1)
	req := newRequest("shell_exec", `{}`)
	got := make(chan string, 1)
	go func() {
		resp, err := c.Call(context.Background(), req, mux.Exchange{})
		if err != nil {
			got <- err.Error()
			return
		}
		got <- string(resp.Result)
	}()
	<-begun // an answer to what nobody waits for yet would prove nothing
	for range 3 {
		b, _ := protocol.Encode(&protocol.Response{ID: req.ID, Result: []byte(`"from evil-01"`)})
		if err := l.conn.Write(t.Context(), false, b); err != nil {
			t.Fatal(err)
		}
	}
	// A pong shows that the server has read what came before.
	b, _ := protocol.Encode(&protocol.Ping{Type: "ping", N: 1})
	if err := l.conn.Write(t.Context(), false, b); err != nil {
		t.Fatal(err)
	}
	for pong := false; !pong; { // other frames may come first
		_, b, err := l.conn.Read(t.Context())
		if err != nil {
			t.Fatalf("dropped answers ended the connection: %v", err)
		}
		pong = bytes.Contains(b, []byte(`"pong"`))
	}
	select {
	case g := <-got:
		t.Fatalf("the call ended with %s", g)
	default:
	}
	close(release)
	if g := <-got; g != `"from web-01"` {
		t.Errorf("the call ended with %s", g)
	}
}

// rawSocket does the WebSocket's upgrade by hand, to write frames that no library writes.
func (r *rig) rawSocket() (net.Conn, *bufio.Reader) {
	r.t.Helper()
	u, _ := url.Parse(r.http.URL)
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", wsconn.Path)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		r.t.Fatalf("upgrade: %v %v", resp, err)
	}
	return c, br
}

// frameHeader is a masked frame's header with an all-zero mask.
func frameHeader(opcode byte, size uint64) []byte {
	b := append([]byte{0x80 | opcode, 0x80 | 127}, binary.BigEndian.AppendUint64(nil, size)...)
	return append(b, 0, 0, 0, 0)
}

// closeCode reads frames until the close and returns its code; 0 for a bare end.
func closeCode(br *bufio.Reader) int {
	for {
		h := make([]byte, 2)
		if _, err := io.ReadFull(br, h); err != nil {
			return 0
		}
		n := int(h[1] & 0x7f)
		if n == 126 {
			ext := make([]byte, 2)
			if _, err := io.ReadFull(br, ext); err != nil {
				return 0
			}
			n = int(binary.BigEndian.Uint16(ext))
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(br, body); err != nil {
			return 0
		}
		if h[0]&0x0f == 8 && n >= 2 {
			return int(binary.BigEndian.Uint16(body))
		}
	}
}

// Whoever has no key sends a frame of 512 MB.
func TestHugeFrameBeforeTheHandshake(t *testing.T) {
	r := newRig(t)
	r.connect(r.enrolled("web-01"))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 20 {
		c, br := r.rawSocket()
		if _, err := c.Write(frameHeader(1, 512<<20)); err != nil {
			t.Fatal(err)
		}
		junk := make([]byte, 64<<10)
		for range 8 { // the server may close while this is written
			if _, err := c.Write(junk); err != nil {
				break
			}
		}
		if code := closeCode(br); code != 1009 && code != 0 {
			t.Errorf("closed with %d", code)
		}
		c.Close()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if c, ok := r.presence.Route("web-01", 1); !ok {
		t.Error("another agent went offline")
	} else if _, err := c.Call(t.Context(), newRequest("t", `{}`), mux.Exchange{}); err != nil {
		t.Error(err)
	}
}

// An enrolled agent does whatever it likes; only its own connection suffers.
func TestHostileAgent(t *testing.T) {
	r := newRig(t)
	r.connect(r.enrolled("web-01"))
	rogue := r.enrolled("evil-01")
	other, _ := r.presence.Route("web-01", 1)
	text := func(s string) func(*wsconn.Conn) {
		return func(c *wsconn.Conn) { _ = c.Write(context.Background(), false, []byte(s)) }
	}
	attacks := map[string]func(*wsconn.Conn){
		"deep nesting":     text(`{"type":"response","id":"x","took_us":1,"result":` + strings.Repeat("[", 7000) + `}`),
		"wrong types":      text(`{"type":"response","id":[],"took_us":"x"}`),
		"nulls":            text(`{"type":null}`),
		"a request":        text(`{"type":"request","id":"x","tool":"shell_exec","args":{},"seal":"s","caller":{"principal":"p","user":"u","kind":"pat"},"deadline_ms":1}`),
		"512 MB announced": text(`{"type":"open","stream":2,"kind":"frame","id":"x","size":536870912}`),
		"too long a text":  text(strings.Repeat("x", protocol.MaxMessage+1)),
		"bad capabilities": text(`{"type":"facts","facts":{"hostname":"","os":"","os_version":"","arch":"","run_as":"","agent_version":""},"capabilities":[{"name":"<b>","version":1}]}`),
		"binary garbage":   func(c *wsconn.Conn) { _ = c.Write(context.Background(), true, []byte("garbage")) },
		"512 MB sent": func(c *wsconn.Conn) {
			b, _ := protocol.Encode(&protocol.Open{Type: "open", Stream: 2, Kind: "frame", ID: "x", Size: protocol.MaxFrame})
			_ = c.Write(context.Background(), false, b)
			chunk := make([]byte, protocol.ChunkHeader+protocol.MaxChunk)
			chunk[3] = 2
			for range 512 << 20 / protocol.MaxChunk {
				if c.Write(context.Background(), true, chunk) != nil {
					return
				}
			}
		},
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			h := r.enrolled("evil-" + strings.ToLower(strings.NewReplacer(" ", "-").Replace(name)))
			l, _, err := r.dial(h)
			if err != nil {
				t.Fatal(err)
			}
			attack(l.conn)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			for err == nil {
				_, _, err = l.conn.Read(ctx)
			}
			if ctx.Err() != nil {
				t.Fatal("the connection lives on")
			}
			if _, err := other.Call(t.Context(), newRequest("t", `{}`), mux.Exchange{}); err != nil {
				t.Errorf("another agent's call: %v", err)
			}
		})
	}
	r.connect(rogue)
}

func TestHandshakeGarbage(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	for name, msg := range map[string]string{
		"not json":       "hello",
		"another frame":  `{"type":"auth","signature":""}`,
		"unknown member": `{"type":"hello","admin":true}`,
		"deep":           strings.Repeat("[", 8000),
		"null id":        `{"type":"hello","agent_id":null}`,
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.open()
			if err := conn.Write(t.Context(), false, []byte(msg)); err != nil {
				t.Fatal(err)
			}
			var v protocol.Challenge
			if refuse, err := next(t.Context(), conn, &v); !errors.Is(err, errRefused) || refuse.Reason != "malformed" {
				t.Errorf("got %v %+v", err, refuse)
			}
			_ = conn.Close(0, "")
		})
	}
	versions := *h
	versions.caps = []protocol.Capability{{Name: "shell exec", Version: 1}}
	r.refused(&versions, "malformed")
}

func TestHostileFacts(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	h.facts = protocol.Facts{Hostname: "x\n{\"level\":\"info\"}\x1b[2J\u202egnp", OS: strings.Repeat("é", 500), RunAs: "<img src=x onerror=alert(1)>", Roots: []string{"/a\x00b"}}
	r.connect(h)
	eventually(t, "the facts", func() bool { return r.db.Snapshot().Agents["web-01"].Facts.Hostname != "host" })
	f := r.db.Snapshot().Agents["web-01"].Facts
	if f.Hostname != `x {"level":"info"}\x1b[2J\xe2\x80\xaegnp` {
		t.Errorf("hostname %q", f.Hostname)
	}
	if len(f.OS) > 256 || !strings.HasPrefix(f.OS, "éé") || strings.ContainsRune(f.OS, '\uFFFD') {
		t.Errorf("os %q", f.OS)
	}
	if f.RunAs != "<img src=x onerror=alert(1)>" { // text stays text; pages escape it
		t.Errorf("run_as %q", f.RunAs)
	}
}

// A thousand times: connect, call, drop in the middle; the server is as before.
func TestNothingLeaks(t *testing.T) {
	r := newRig(t)
	h := r.enrolled("web-01")
	h.noAck = true
	hang := func(started chan<- struct{}) handlerFunc {
		return func(ctx context.Context, _ *protocol.Request, _ func(string)) *protocol.Response {
			close(started)
			<-ctx.Done()
			return nil
		}
	}
	round := func() {
		started := make(chan struct{})
		o := r.connectWith(h, hang(started))
		c, ok := r.presence.Route("web-01", 1)
		if !ok {
			t.Fatal("no route")
		}
		called := make(chan error, 1)
		go func() { _, err := c.Call(context.Background(), newRequest("t", `{}`), mux.Exchange{}); called <- err }()
		<-started
		o.session.Close(0, "")
		if err := <-called; !errors.Is(err, protocol.ErrCut) {
			t.Fatalf("the call ended with %v", err)
		}
		<-o.done
	}
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	round()
	before := runtime.NumGoroutine()
	for range rounds {
		round()
	}
	eventually(t, "the goroutines back at the start", func() bool { return runtime.NumGoroutine() <= before+2 })
}
