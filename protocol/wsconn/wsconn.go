// Package wsconn carries the tunnel's messages over a WebSocket. It's the only importer of
// coder/websocket.
package wsconn

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// Path is where a server accepts agents, below its base URL.
const Path = "/agent/v1/tunnel"

// readLimit is the largest message after the handshake: a chunk with its header.
const readLimit = protocol.MaxMessage + protocol.ChunkHeader

// unsentLimit is how much a socket takes that the system hasn't sent yet, where it can be
// told so.
const unsentLimit = 128 << 10

// Conn is a mux.Pipe over one WebSocket, without compression. Until Established, messages
// are limited to protocol.MaxHello.
type Conn struct {
	ws  *websocket.Conn
	raw io.Closer // the connection beneath ws
	buf *[]byte   // lent until the next Read
}

// closeWait bounds how long Close waits for the peer to agree.
const closeWait = 3 * time.Second

func wrap(ws *websocket.Conn, raw io.Closer) *Conn {
	ws.SetReadLimit(protocol.MaxHello)
	return &Conn{ws: ws, raw: raw}
}

// hijacked remembers the connection that an upgrade takes over.
type hijacked struct {
	http.ResponseWriter
	raw net.Conn
}

// bufferSize is that of a connection's buffers, one for each way, which it holds as long as
// it lives. The HTTP server's have four times this size, which is the larger part of what an
// idle agent costs. Nearly all frames fit; what doesn't is read and written past them.
const bufferSize = 1 << 10

// Hijack implements http.Hijacker.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.raw = c
	if err != nil {
		return c, rw, err
	}
	c = cutConn{c}
	if rw.Reader.Buffered() > 0 { // what was read ahead stays where it is; the library puts c behind it
		return c, rw, nil
	}
	return c, bufio.NewReadWriter(bufio.NewReaderSize(c, bufferSize), bufio.NewWriterSize(c, bufferSize)), nil
}

// cut is the error of a read of bytes, whose end is always unexpected: the library says io.EOF
// at the end of a message, but also within one where the bytes end before a frame of it or
// right behind a frame's header.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// cutConn is a connection accepted, whose end is an error.
type cutConn struct{ net.Conn }

// Read implements io.Reader.
func (c cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, cut(err)
}

// cutBody is a connection dialled, whose end is an error.
type cutBody struct{ io.ReadWriteCloser }

// Read implements io.Reader.
func (b cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	return n, cut(err)
}

// upgraded remembers the connection of a response that switched protocols.
type upgraded struct {
	next http.RoundTripper
	raw  io.Closer
}

// RoundTrip implements http.RoundTripper.
func (u *upgraded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := u.next.RoundTrip(r)
	if err == nil {
		u.raw = resp.Body
		if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Body = cutBody{rw}
		}
	}
	return resp, err
}

// Accept upgrades a request of an agent. It has answered the request when it fails.
// A browser's request (one with an Origin) is only accepted from the server's own origin.
func Accept(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	h := &hijacked{ResponseWriter: w}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, err
	}
	keepShort(h.raw)
	return wrap(ws, h.raw), nil
}

// DialError is a server's answer that isn't a WebSocket.
type DialError struct {
	Status     int           // the HTTP status
	RetryAfter time.Duration // from the header; 0 when there's none
	Body       string        // the answer's first line, cleaned
}

// Error implements error.
func (e *DialError) Error() string {
	return fmt.Sprintf("the server answered %d instead of opening the tunnel: %s", e.Status, e.Body)
}

// URL makes the tunnel's URL from a server's base URL, whose scheme is http, https, ws or wss.
func URL(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("the server's URL: %w", err)
	}
	switch u.Scheme {
	case "http", "ws":
		u.Scheme = "ws"
	case "https", "wss":
		u.Scheme = "wss"
	default:
		return "", fmt.Errorf("the server's URL has the scheme %q; it must be https or http", u.Scheme)
	}
	if u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the server's URL must be like https://drover.example.com, without user, query and fragment")
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + Path
	return u.String(), nil
}

// Dial opens the tunnel of a server, given by its base URL. client's Timeout must be zero;
// its transport decides about proxies and certificates. Redirects aren't followed.
func Dial(ctx context.Context, server string, client *http.Client, header http.Header) (*Conn, error) {
	target, err := URL(server)
	if err != nil {
		return nil, err
	}
	hc := *client
	up := &upgraded{next: cmp.Or(hc.Transport, http.DefaultTransport)}
	hc.Transport = up
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { keepShort(i.Conn) }})
	ws, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: &hc, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled})
	if err == nil {
		return wrap(ws, up.raw), nil
	}
	if resp == nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, err
	}
	de := &DialError{Status: resp.StatusCode}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s < 86400 {
		de.RetryAfter = time.Duration(s) * time.Second
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // only for the message
	de.Body = text.Line(string(body), 200)
	return nil, de
}

// Established raises the message limit once the peer is known.
func (c *Conn) Established() { c.ws.SetReadLimit(readLimit) }

// Read implements mux.Pipe. With a ctx that can end, its end closes the connection.
func (c *Conn) Read(ctx context.Context) (bool, []byte, error) {
	if c.buf != nil {
		readBuffers.put(c.buf)
		c.buf = nil
	}
	typ, r, err := c.ws.Reader(ctx)
	if err != nil {
		return false, nil, classify(err)
	}
	c.buf = readBuffers.get()
	b := *c.buf
	n := 0
	for n < len(b) {
		m, err := r.Read(b[n:])
		n += m
		if err == io.EOF {
			return typ == websocket.MessageBinary, b[:n], nil
		}
		if err != nil {
			return false, nil, classify(err)
		}
	}
	return false, nil, protocol.ErrTooBig
}

func classify(err error) error {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return protocol.ErrTooBig
	}
	var ce websocket.CloseError
	if errors.As(err, &ce) {
		return &protocol.CloseError{Code: int(ce.Code), Reason: ce.Reason}
	}
	return err
}

// Write implements mux.Pipe. With a ctx that can end, its end closes the connection.
func (c *Conn) Write(ctx context.Context, binary bool, msg []byte) error {
	typ := websocket.MessageText
	if binary {
		typ = websocket.MessageBinary
	}
	return c.ws.Write(ctx, typ, msg)
}

// Close implements mux.Pipe. With a code it waits for the peer's own close, but not for
// ever: the library reads a message that it has begun to its end, however long the peer
// says that it is and takes to send it.
func (c *Conn) Close(code int, reason string) error {
	if code == 0 {
		return c.ws.CloseNow()
	}
	t := time.AfterFunc(closeWait, func() { _ = c.raw.Close() })
	defer t.Stop()
	return c.ws.Close(websocket.StatusCode(code), reason)
}

// bufferPool lends read buffers, so that an idle connection holds none.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, readLimit+2)
	return &b
}

func (p *bufferPool) put(b *[]byte) { p.pool.Put(b) }

var readBuffers bufferPool // buffers without content: no state
