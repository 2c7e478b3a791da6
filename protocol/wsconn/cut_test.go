package wsconn_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// The first byte of a frame: its kind, and whether it's the last of its message.
const (
	more, text, closing, ping, pong = 0x0, 0x1, 0x8, 0x9, 0xA
	last                            = 0x80
)

// frame is one frame as an agent sends it (masked, with zeros) or as a server does.
func frame(agent bool, first byte, payload string) string {
	if agent {
		return string([]byte{first, 0x80 | byte(len(payload)), 0, 0, 0, 0}) + payload
	}
	return string([]byte{first, byte(len(payload))}) + payload
}

// sides are the two ends that read, each with a peer that writes raw bytes. The returned
// function has the peer send these bytes, and end its connection if it's told to.
var sides = map[string]func(t *testing.T) (c *wsconn.Conn, send func(frames string, end bool)){
	"a server reads an agent": func(t *testing.T) (*wsconn.Conn, func(string, bool)) {
		ts, got := accepting(t, 1)
		raw := upgrade(t, ts, "")
		return <-got, sender(t, raw)
	},
	"an agent reads a server": func(t *testing.T) (*wsconn.Conn, func(string, bool)) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		got := make(chan net.Conn, 1)
		go func() {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(raw)); err == nil {
				sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
				_, _ = fmt.Fprintf(raw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
			}
			got <- raw
		}()
		c, err := wsconn.Dial(t.Context(), "http://"+l.Addr().String(), &http.Client{Transport: &http.Transport{}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		raw := <-got
		t.Cleanup(func() { _ = raw.Close() })
		return c, sender(t, raw)
	},
}

func sender(t *testing.T, raw net.Conn) func(string, bool) {
	return func(frames string, end bool) {
		if _, err := raw.Write([]byte(frames)); err != nil {
			t.Log(err) // the reader may have closed
		}
		if end {
			_ = raw.(*net.TCPConn).CloseWrite()
		}
	}
}

// read is a message of c, or the error of the connection that c must have instead.
func read(t *testing.T, c *wsconn.Conn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, msg, err := c.Read(ctx)
	if ctx.Err() != nil {
		t.Fatal("the read took too long")
	}
	return string(msg), err
}

// TestACutMessageIsNoMessage: a connection that ends within a message, wherever that is,
// gives an error. What came before it was whole.
func TestACutMessageIsNoMessage(t *testing.T) {
	for name, side := range sides {
		agent := strings.Contains(name, "reads an agent")
		f := func(first byte, payload string) string { return frame(agent, first, payload) }
		t.Run(name, func(t *testing.T) {
			head := f(text|last, "whole")
			for shape, frames := range map[string]string{
				"one frame": f(text|last, "abc"), "two frames": f(text, "abc") + f(more|last, "def"), "an empty end": f(text, "abc") + f(more|last, ""),
				"a ping between": f(text, "abc") + f(ping|last, "p") + f(more, "") + f(pong|last, "") + f(more|last, "def"),
			} {
				for n := range len(frames) + 1 {
					c, send := side(t)
					send(head+frames[:n], true)
					if msg, err := read(t, c); err != nil || msg != "whole" {
						t.Fatalf("%s, %d of %d bytes: before it: %q %v", shape, n, len(frames), msg, err)
					}
					msg, err := read(t, c)
					if n == len(frames) {
						if err != nil || !strings.HasPrefix("abcdef", msg) || msg == "" {
							t.Errorf("%s, whole: %q %v", shape, msg, err)
						}
						_, err = read(t, c)
					}
					if err == nil {
						t.Errorf("%s, %d of %d bytes: %q was taken for a message", shape, n, len(frames), msg)
					}
					_ = c.Close(0, "")
				}
			}
		})
	}
}

// TestFramesOfAMessage: what may stand between a message's frames, and what ends the
// connection instead, also where the peer goes on.
func TestFramesOfAMessage(t *testing.T) {
	for name, side := range sides {
		agent := strings.Contains(name, "reads an agent")
		f := func(first byte, payload string) string { return frame(agent, first, payload) }
		cases := map[string]struct{ frames, want string }{
			"fragments":                       {f(text, "ab") + f(more, "cd") + f(more|last, "ef"), "abcdef"},
			"an empty last fragment":          {f(text, "ab") + f(more|last, ""), "ab"},
			"empty fragments alone":           {f(text, "") + f(more, "") + f(more|last, ""), ""},
			"a ping and a pong between":       {f(text, "ab") + f(ping|last, "x") + f(pong|last, "y") + f(more|last, "cd"), "abcd"},
			"a close between":                 {f(text, "ab") + f(closing|last, "\x10\x68bye") + f(more|last, "cd"), "error"},
			"an empty close between":          {f(text, "ab") + f(closing|last, "") + f(more|last, "cd"), "error"},
			"a new message between":           {f(text, "ab") + f(text|last, "cd"), "error"},
			"an end without a beginning":      {f(more|last, "ab"), "error"},
			"a reserved bit":                  {f(text|last|0x40, "ab"), "error"},
			"the second reserved bit":         {f(text|last|0x20, "ab"), "error"},
			"the third, on a fragment":        {f(text, "ab") + f(more|last|0x10, "cd"), "error"},
			"an opcode that there isn't":      {f(0x3|last, "ab"), "error"},
			"a control frame in fragments":    {f(text, "ab") + f(ping, "x") + f(more|last, "cd"), "error"},
			"a control frame that's too long": {f(text, "ab") + f(ping|last, strings.Repeat("x", 126)) + f(more|last, "cd"), "error"},
		}
		if agent {
			cases["a frame without a mask"] = struct{ frames, want string }{frame(false, text|last, "ab"), "error"}
			cases["a fragment without a mask"] = struct{ frames, want string }{f(text, "ab") + frame(false, more|last, "cd"), "error"}
		}
		for what, k := range cases {
			t.Run(name+"/"+what, func(t *testing.T) {
				c, send := side(t)
				defer func() { _ = c.Close(0, "") }()
				send(k.frames, false)
				msg, err := read(t, c)
				if k.want != "error" {
					if err != nil || msg != k.want {
						t.Errorf("%q %v", msg, err)
					}
					return
				}
				if err == nil {
					t.Fatalf("%q was taken for a message", msg)
				}
				var ce *protocol.CloseError
				if what == "a close between" && (!errors.As(err, &ce) || ce.Code != 4200 || ce.Reason != "bye") {
					t.Errorf("the close is %v", err)
				}
				send(f(text|last, "next"), true)
				if msg, err := read(t, c); err == nil {
					t.Errorf("%q was read after that", msg)
				}
			})
		}
	}
}
