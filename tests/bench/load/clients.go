package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/crypto/ssh"
)

// The protocol eras.
const (
	Modern = "2026-07-28"
	Legacy = "2025-11-25"
)

// Tool is a call to make.
type Tool struct {
	Name string
	Args map[string]any
}

// MCP connects the SDK's client in an era and returns what makes the call, and what sends
// the same bytes again without a client's own work (nil in the older era, whose sessions
// number their requests).
func MCP(ctx context.Context, url, token, era string, tool Tool) (call, bytesOnly func(context.Context) error, err error) {
	tr := &http.Transport{MaxIdleConnsPerHost: 128}
	rec := &recorder{token: token, next: tr}
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	transport := &mcp.StreamableClientTransport{Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: rec}, DisableStandaloneSSE: true}
	session, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: era})
	if err != nil {
		return nil, nil, fmt.Errorf("%s in %s: %w", url, era, err)
	}
	call = func(ctx context.Context) error {
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool.Name, Arguments: tool.Args})
		if err == nil && res.IsError {
			err = fmt.Errorf("%s failed: %v", tool.Name, res.GetError())
			if len(res.Content) > 0 {
				if t, ok := res.Content[0].(*mcp.TextContent); ok {
					err = fmt.Errorf("%s failed: %s", tool.Name, t.Text)
				}
			}
		}
		return err
	}
	rec.armed.Store(true)
	if err := call(ctx); err != nil {
		return nil, nil, err
	}
	if era < Modern {
		return call, nil, nil
	}
	raw := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	return call, func(ctx context.Context) error { return post(ctx, raw, url+"/mcp", rec.header, rec.body) }, nil
}

// post sends a recorded request and reads the answer whole.
func post(ctx context.Context, c *http.Client, url string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(b, []byte(`"result"`)) || bytes.Contains(b, []byte(`"isError":true`))) {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return err
}

// recorder adds the credential, and keeps the first request after it was armed.
type recorder struct {
	token  string
	next   http.RoundTripper
	armed  atomic.Bool
	header http.Header
	body   []byte
}

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if req.Body != nil && r.armed.CompareAndSwap(true, false) {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		r.header, r.body = req.Header.Clone(), b
		req.Body = io.NopCloser(bytes.NewReader(b))
	}
	return r.next.RoundTrip(req)
}

// SSH returns what runs a command in a session of its own on a kept connection.
func SSH(c *ssh.Client, command, want string) func(context.Context) error {
	return func(context.Context) error {
		s, err := c.NewSession()
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // it's closed already where the command has ended
		out, err := s.Output(command)
		if err == nil && string(out) != want {
			err = fmt.Errorf("%q printed %q", command, out)
		}
		return err
	}
}
