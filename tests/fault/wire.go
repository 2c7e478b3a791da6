package fault

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/drover-fleet/drover/protocol"
)

// Side is an end of the tunnel.
type Side string

// The two ends.
const (
	Server Side = "server"
	Agent  Side = "agent"
)

// Frame is one message of a tunnel as it passes a Wire.
type Frame struct {
	From Side
	// Type is the frame's type; "" for a binary message.
	Type protocol.Type
	// Payload is the message; it mustn't be kept.
	Payload []byte
	// Gone is closed when the connection has ended: whoever holds a frame lets go then.
	Gone <-chan struct{}
}

// Verdict is what to do with a frame.
type Verdict int

// The verdicts. Those that cut end the connection in order, so that what was delivered
// before arrives.
const (
	Pass Verdict = iota
	Drop
	Twice
	CutBefore
	CutHalf // half of the frame arrives
	CutAfter
)

// Wire is a proxy in front of a server that reads the tunnels that go through it. It works
// on plain ws alone. Other requests pass as they are.
type Wire struct {
	door
	judging   sync.Mutex
	judge     func(Frame) Verdict
	delivered map[kind]int
}

// kind is what frames are counted by.
type kind struct {
	from Side
	typ  protocol.Type
}

// NewWire makes a wire on loopback in front of a server (HOST:PORT). It ends with the test,
// and leaves no goroutine.
func NewWire(t testing.TB, target string) *Wire {
	t.Helper()
	w := &Wire{delivered: map[kind]int{}}
	w.begin(t, target, w.through)
	return w
}

// Judge asks fn about every message from now on; nil lets all pass. fn is called from one
// goroutine for each way of a connection and may hold its way up.
func (w *Wire) Judge(fn func(Frame) Verdict) {
	w.judging.Lock()
	defer w.judging.Unlock()
	w.judge = fn
}

// Delivered is how many frames of this type, from this side, were handed on whole.
func (w *Wire) Delivered(from Side, typ protocol.Type) int {
	w.judging.Lock()
	defer w.judging.Unlock()
	return w.delivered[kind{from, typ}]
}

func (w *Wire) deliver(f Frame, v Verdict) {
	if f.Payload == nil || v != Pass && v != CutAfter && v != Twice {
		return
	}
	w.judging.Lock()
	defer w.judging.Unlock()
	w.delivered[kind{f.From, f.Type}]++
}

func (w *Wire) verdict(f Frame) Verdict {
	w.judging.Lock()
	fn := w.judge
	w.judging.Unlock()
	if fn == nil {
		return Pass
	}
	return fn(f)
}

// through carries HTTP requests one by one until one becomes a WebSocket, and then that.
func (w *Wire) through(c *pair) {
	client, server := bufio.NewReader(c.client), bufio.NewReader(c.server)
	for {
		req, err := http.ReadRequest(client)
		if err != nil {
			return
		}
		if req.Write(c.server) != nil {
			return
		}
		resp, err := http.ReadResponse(server, req)
		if err != nil {
			return
		}
		err = resp.Write(c.client)
		if err != nil || resp.Body.Close() != nil {
			return
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			break
		}
	}
	var both sync.WaitGroup
	both.Go(func() { w.frames(c, client, c.server, Agent) })
	both.Go(func() { w.frames(c, server, c.client, Server) })
	both.Wait()
}

// frames carries one way of a WebSocket.
func (w *Wire) frames(c *pair, from *bufio.Reader, to net.Conn, side Side) {
	defer c.finish() // a WebSocket of which one way has ended is of no use
	for {
		raw, f, err := readFrame(from)
		if err != nil {
			return
		}
		f.From, f.Gone = side, c.gone
		v := Pass
		if f.Payload != nil {
			v = w.verdict(f)
		}
		if write(to, raw, v) != nil {
			return
		}
		w.deliver(f, v)
		if v == CutBefore || v == CutHalf || v == CutAfter {
			return
		}
	}
}

func write(to io.Writer, raw []byte, v Verdict) error {
	var err error
	switch v {
	case Drop, CutBefore:
	case CutHalf:
		_, err = to.Write(raw[:len(raw)/2])
	case Twice:
		if _, err = to.Write(raw); err == nil {
			_, err = to.Write(raw)
		}
	case Pass, CutAfter:
		_, err = to.Write(raw)
	}
	return err
}

var errFrame = errors.New("fault: a WebSocket frame that a tunnel doesn't have")

// readFrame reads one WebSocket frame: raw as it came, f with what it says; Payload is nil for
// a control frame. The library sends every message of a tunnel as one frame.
func readFrame(r *bufio.Reader) (raw []byte, f Frame, err error) {
	head := make([]byte, 2, 14)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, f, err
	}
	const final, masked = 0x80, 0x80
	size := int(head[1] &^ masked)
	more := map[int]int{126: 2, 127: 8}[size]
	if head[1]&masked != 0 {
		more += 4
	}
	head = head[:2+more]
	if _, err := io.ReadFull(r, head[2:]); err != nil {
		return nil, f, err
	}
	switch size {
	case 126:
		size = int(binary.BigEndian.Uint16(head[2:]))
	case 127:
		size = int(binary.BigEndian.Uint64(head[2:]))
	}
	opcode := head[0] & 0xf
	if head[0]&final == 0 || size > protocol.MaxMessage+protocol.ChunkHeader {
		return nil, f, errFrame
	}
	raw = append(head, make([]byte, size)...)
	payload := raw[len(head):]
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, f, err
	}
	if opcode > 2 { // ping, pong, close
		return raw, f, nil
	}
	f.Payload = payload
	if head[1]&masked != 0 {
		key := head[len(head)-4:]
		f.Payload = make([]byte, size)
		for i := range f.Payload {
			f.Payload[i] = payload[i] ^ key[i%4]
		}
	}
	if opcode == 1 {
		f.Type, err = protocol.PeekType(f.Payload)
	}
	return raw, f, err
}
