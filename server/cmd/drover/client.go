package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// maxAnswer bounds an answer of the API, in bytes.
const maxAnswer = 16 << 20

// client speaks Drover's API: to a server by URL, or to one made over the local data.
type client struct {
	base, token string
	tokenFrom   string // where the user gave it; "" where nobody did
	http        *http.Client
	close       func() error
	// tokens judges tokens; only for an API over local data.
	tokens restapi.Tokens
}

// connect makes the client that w describes.
func (a *app) connect(ctx context.Context, w *where) (*client, error) {
	if !w.remote {
		return openLocal(ctx, w, false)
	}
	return a.dial(w)
}

func (a *app) dial(w *where) (*client, error) {
	u, err := url.Parse(w.url)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "--url must be http://HOST:PORT or https://HOST")
	}
	if w.token == "" {
		return nil, fleet.Errorf(protocol.CodeUnauthenticated, "a personal access token is needed: set DROVER_PAT, or give --token; make one on the server's machine with: drover pat create")
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) {
		a.say("drover: warning: %s is not encrypted; whoever is between can read the token and the output", text.Line(w.url, 100))
	}
	return &client{
		base: strings.TrimSuffix(u.Scheme+"://"+u.Host+u.Path, "/"), token: w.token, tokenFrom: w.tokenFrom(), close: func() error { return nil },
		http: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// loopbackURL tells that a URL's host is the machine that asks, and no other.
func loopbackURL(base string) bool {
	u, err := url.Parse(base)
	return err == nil && loopback(u.Hostname())
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// do makes one request and decodes the answer into out (nil: there's none). Errors that
// the server worded are *fleet.Error; so are those of the way to it.
func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		return c.problem(resp, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fleet.Errorf(protocol.CodeInternal, "%s doesn't answer like a Drover server (HTTP %d); is the URL right?", c.base, resp.StatusCode)
	}
	return nil
}

// change is do for a request that changes something, once. One that a server may have heard isn't
// said to have done nothing.
func (c *client) change(ctx context.Context, method, path string, in, out any) error {
	err := c.do(ctx, method, path, in, out)
	if !reached(err) {
		return err
	}
	return fleet.Wrap(protocol.CodeOutcomeUnknown, err, "it may have been done all the same, so look before you repeat it: %s", fleet.AsError(err).Message)
}

// problem is problem, and says where a token that doesn't count was taken from: the one that's
// meant is often another.
func (c *client) problem(resp *http.Response, b []byte) error {
	err := problem(resp, b)
	if fe, ok := errors.AsType[*fleet.Error](err); ok && fe.Code == protocol.CodeUnauthenticated && c.tokenFrom != "" {
		fe.Message += " (it was taken from " + c.tokenFrom + ")"
	}
	return err
}

// request makes a request of the API with the client's credential.
func (c *client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+restapi.Prefix+path, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("User-Agent", "drover-cli/"+versionText())
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

func (c *client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fleet.Wrap(protocol.CodeUnavailable, errors.Join(errDial, err), "no Drover server answers at %s (%v); is it running, and is --url right?", c.base, op.Err)
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fleet.Wrap(protocol.CodeUnavailable, errors.Join(errDial, err), "%s speaks plain HTTP, not TLS; is http:// meant, or the port of a TLS proxy?", c.base)
	}
	return fleet.Wrap(protocol.CodeUnavailable, errors.Join(errCut, err), "the connection to %s was lost: %v", c.base, unwrapURL(err))
}

func unwrapURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
