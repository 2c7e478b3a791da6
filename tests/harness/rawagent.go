package harness

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/wsconn"
)

// RawAgent is an agent with a valid key that says whatever a test wants it to say.
type RawAgent struct {
	ID         string
	Key        ed25519.PrivateKey
	Generation int64
	Server     ed25519.PublicKey
	Facts      protocol.Facts
	Epoch      int64
	// Instance names its process; when empty each Connect is another one's.
	Instance string
	// Boot names its journal; made of its id when empty.
	Boot string
	// Offers are the tools that it announces; all when nil.
	Offers []string

	fleet *Client
	conn  *wsconn.Conn
	tcp   net.Conn // beneath conn
}

// RawAgent enrols a key under this id; Connect opens its tunnel.
func (f *Client) RawAgent(id string) *RawAgent {
	f.T.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.T.Fatal(err)
	}
	reply, err := f.Enrol(f.EnrolToken(id, nil, false), key, "raw")
	if err != nil {
		f.T.Fatalf("enrol %s: %v", id, err)
	}
	server, err := protocol.UnB64(reply.ServerKey, ed25519.PublicKeySize)
	if err != nil {
		f.T.Fatal(err)
	}
	return &RawAgent{
		ID: id, Key: key, Generation: reply.Generation, Server: server, fleet: f,
		Facts: protocol.Facts{Hostname: "raw", OS: "linux", OSVersion: "x", Arch: "amd64", RunAs: "root", AgentVersion: "test"},
	}
}

// Enrol exchanges a token for the registration of this key.
func (f *Client) Enrol(token string, key ed25519.PrivateKey, hostname string) (reply protocol.EnrolReply, err error) {
	f.T.Helper()
	tok, err := protocol.ParseEnrolToken(token)
	if err != nil {
		return reply, err
	}
	pub := key.Public().(ed25519.PublicKey)
	nonce := make([]byte, protocol.NonceSize)
	_, _ = rand.Read(nonce)
	tr := protocol.EnrolTranscript(tok.ID[:], pub, nonce, hostname, tok.Server[:])
	body, err := json.Marshal(protocol.EnrolRequest{
		TokenID: protocol.B64(tok.ID[:]), AgentKey: protocol.B64(pub), Nonce: protocol.B64(nonce), Hostname: hostname,
		Signature: protocol.B64(ed25519.Sign(tok.Key(), tr)), Proof: protocol.B64(ed25519.Sign(key, tr)),
	})
	if err != nil {
		return reply, err
	}
	resp, err := http.Post(f.URL+"/agent/v1/enroll", "application/json", bytes.NewReader(body))
	if err != nil {
		return reply, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply, err
	}
	if resp.StatusCode != http.StatusOK {
		return reply, fmt.Errorf("HTTP %d: %s", resp.StatusCode, b)
	}
	return reply, json.Unmarshal(b, &reply)
}

// At is the same agent, not connected, that connects to another replica.
func (a *RawAgent) At(f *Client) *RawAgent {
	other := *a
	other.fleet, other.conn, other.tcp = f, nil, nil
	return &other
}

// Connect opens the tunnel and offers every capability, or Offers.
func (a *RawAgent) Connect() error {
	var caps []protocol.Capability
	for _, d := range capability.All() {
		if a.Offers == nil || slices.Contains(a.Offers, d.Name) {
			caps = append(caps, protocol.Capability{Name: d.Name, Version: d.Version})
		}
	}
	nonce := make([]byte, protocol.NonceSize)
	_, _ = rand.Read(nonce)
	hello, err := protocol.Encode(&protocol.Hello{
		Type: protocol.TypeHello, AgentID: a.ID, Versions: protocol.Supported(), Generation: a.Generation,
		Instance: cmp.Or(a.Instance, rand.Text()), LastEpoch: a.Epoch, Nonce: protocol.B64(nonce), Facts: a.Facts, Capabilities: caps,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		a.tcp, err = new(net.Dialer).DialContext(ctx, network, addr)
		return a.tcp, err
	}
	conn, err := wsconn.Dial(ctx, a.fleet.URL, &http.Client{Transport: &http.Transport{DialContext: dial}}, nil)
	if err != nil {
		return err
	}
	a.conn = conn
	if err := conn.Write(ctx, false, hello); err != nil {
		return err
	}
	var challenge protocol.Challenge
	if err := a.expect(ctx, &challenge); err != nil {
		return err
	}
	serverNonce, err := protocol.UnB64(challenge.Nonce, protocol.NonceSize)
	if err != nil {
		return err
	}
	proof := protocol.AgentTranscript(hello, serverNonce, a.Key.Public().(ed25519.PublicKey), a.Server)
	auth, err := protocol.Encode(&protocol.Auth{Type: protocol.TypeAuth, Signature: protocol.B64(ed25519.Sign(a.Key, proof))})
	if err != nil {
		return err
	}
	if err := conn.Write(ctx, false, auth); err != nil {
		return err
	}
	var welcome protocol.Welcome
	if err := a.expect(ctx, &welcome); err != nil {
		return err
	}
	a.Epoch = welcome.Epoch
	conn.Established()
	if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":%q}`, cmp.Or(a.Boot, "raw-"+a.ID))); err != nil {
		return err
	}
	a.fleet.WaitState(a.ID, "online")
	return nil
}

func (a *RawAgent) expect(ctx context.Context, v any) error {
	_, msg, err := a.conn.Read(ctx)
	if err != nil {
		return err
	}
	if err := protocol.DecodeInto(msg, v); err != nil {
		return fmt.Errorf("%w: %s", err, msg)
	}
	return nil
}

// Send writes one text message as it is.
func (a *RawAgent) Send(text string) error {
	return a.conn.Write(context.Background(), false, []byte(text))
}

// SendBinary writes one binary message as it is.
func (a *RawAgent) SendBinary(b []byte) error { return a.conn.Write(context.Background(), true, b) }

// Flood writes one text frame of this many bytes, beneath the WebSocket library, and tells
// how much of it was taken before the connection ended.
func (a *RawAgent) Flood(size uint64) (written uint64, err error) {
	const final, text, masked, long = 0x80, 0x1, 0x80, 127
	head := binary.BigEndian.AppendUint64([]byte{final | text, masked | long}, size)
	if _, err := a.tcp.Write(append(head, 0, 0, 0, 0)); err != nil { // a mask of zeros changes nothing
		return 0, err
	}
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	for written < size {
		n, err := a.tcp.Write(chunk[:min(uint64(len(chunk)), size-written)])
		written += uint64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Next reads messages until one is of this type ("" for any) and decodes it; control frames
// of other types are passed over.
func (a *RawAgent) Next(t protocol.Type) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		isBinary, msg, err := a.conn.Read(ctx)
		if err != nil {
			return nil, err
		}
		if isBinary {
			continue
		}
		if got, err := protocol.PeekType(msg); err != nil || t != "" && got != t {
			continue
		}
		return protocol.Decode(msg)
	}
}

// NextBinary reads messages until one is a chunk of a stream, and passes over the others.
func (a *RawAgent) NextBinary() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		isBinary, msg, err := a.conn.Read(ctx)
		if err != nil || isBinary {
			return msg, err
		}
	}
}

// Request reads the next request.
func (a *RawAgent) Request() (*protocol.Request, error) {
	v, err := a.Next(protocol.TypeRequest)
	if err != nil {
		return nil, err
	}
	return v.(*protocol.Request), nil
}

// Answer sends a response whose result is this JSON.
func (a *RawAgent) Answer(id, result string) error {
	return a.Send(fmt.Sprintf(`{"type":"response","id":%q,"result":%s,"took_us":1}`, id, result))
}

// Close cuts the connection, as a host does that loses power.
func (a *RawAgent) Close() {
	if a.conn != nil {
		_ = a.conn.Close(0, "")
	}
}
