package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Client speaks to a server as its users do, over HTTP alone.
type Client struct {
	T testing.TB
	// URL is the server's, without a path.
	URL string
	// Admin is an administrator's PAT for all agents and tools.
	Admin string
}

// REST is a client of /api/v1 with one credential.
type REST struct {
	t     testing.TB
	url   string
	token string
}

// REST returns a client with this PAT ("" for none).
func (f *Client) REST(token string) *REST { return &REST{t: f.T, url: f.URL, token: token} }

// Do sends a request whose body is sent as it is and returns status and body.
func (c *REST) Do(method, path, body string) (int, []byte) {
	c.t.Helper()
	status, _, b := c.Whole(method, path, body)
	return status, b
}

// Whole is Do, with the answer's header.
func (c *REST) Whole(method, path, body string) (int, http.Header, []byte) {
	c.t.Helper()
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, []byte(err.Error())
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, []byte(err.Error())
	}
	return resp.StatusCode, resp.Header, b
}

// JSON sends in (nil for no body) and decodes a 2xx answer into out.
func (c *REST) JSON(method, path string, in, out any) int {
	c.t.Helper()
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			c.t.Fatal(err)
		}
	}
	status, b := c.Do(method, path, string(body))
	if status/100 == 2 && out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			c.t.Fatalf("%s %s: %v in %s", method, path, err, b)
		}
	}
	return status
}

// CallResult is what POST /api/v1/calls answers.
type CallResult struct {
	CallID  string          `json:"call_id"`
	AgentID string          `json:"agent_id"`
	Tool    string          `json:"tool"`
	State   string          `json:"state"`
	Result  json.RawMessage `json:"result"`
	Error   *APIError       `json:"error"`
	// Evidence was learnt after an outcome of outcome_unknown.
	Evidence string `json:"evidence"`
}

// APIError is an error of the API.
type APIError struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Stdout is the standard output in a command's result.
func (r CallResult) Stdout() string {
	var p struct {
		Stdout string `json:"stdout"`
	}
	_ = json.Unmarshal(r.Result, &p)
	return p.Stdout
}

// Call makes a call over REST and returns its status and answer; a refusal's error is in
// Error too.
func (c *REST) Call(agent, tool string, args any) (int, CallResult) {
	c.t.Helper()
	b, err := json.Marshal(map[string]any{"agent_id": agent, "tool": tool, "args": args})
	if err != nil {
		c.t.Fatal(err)
	}
	status, body := c.Do("POST", "/api/v1/calls", string(b))
	var out CallResult
	if err := json.Unmarshal(body, &out); err != nil {
		c.t.Fatalf("call: %d %s", status, body)
	}
	return status, out
}

// PAT makes a PAT; agents and tools are written as on the command line: "all", or a list,
// or for agents a selector k=v,k=v.
func (f *Client) PAT(name, agents, tools string, admin bool) (token, id string) {
	f.T.Helper()
	words := func(s string) any {
		if s == "all" {
			return map[string]any{"all": true}
		}
		if !strings.Contains(s, "=") {
			return map[string]any{"ids": strings.Split(s, ",")}
		}
		selector := map[string]string{}
		for kv := range strings.SplitSeq(s, ",") {
			k, v, _ := strings.Cut(kv, "=")
			selector[k] = v
		}
		return map[string]any{"selector": selector}
	}
	granted := any(map[string]any{"names": strings.Split(tools, ",")})
	if tools == "all" {
		granted = map[string]any{"all": true}
	}
	in := map[string]any{"name": name, "admin": admin, "grant": map[string]any{"agents": words(agents), "tools": granted}}
	var out struct {
		Token string `json:"token"`
		ID    string `json:"id"`
	}
	if status := f.REST(f.Admin).JSON("POST", "/api/v1/pats", in, &out); status/100 != 2 {
		f.T.Fatalf("PAT %s: status %d", name, status)
	}
	return out.Token, out.ID
}

// EnrolToken makes an enrolment token.
func (f *Client) EnrolToken(id string, labels map[string]string, replace bool) string {
	f.T.Helper()
	if labels == nil {
		labels = map[string]string{}
	}
	var out struct {
		Token string `json:"token"`
	}
	in := map[string]any{"agent_id": id, "labels": labels, "replace": replace}
	if status := f.REST(f.Admin).JSON("POST", "/api/v1/enrolments", in, &out); status/100 != 2 {
		f.T.Fatalf("enrolment of %s: status %d", id, status)
	}
	return out.Token
}

// Record is a row of the audit list.
type Record struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	CallID string `json:"call_id"`
	// Body holds what tests look at of the row itself.
	Body struct {
		Code  string `json:"code"`
		State string `json:"state"` // of an outcome
		Count int    `json:"count"`
	} `json:"body"`
}

// AllRecords returns every row of the record, the newest first.
func (f *Client) AllRecords() []Record {
	f.T.Helper()
	var all []Record
	cursor := ""
	for {
		var out struct {
			Rows []Record `json:"rows"`
			Next string   `json:"next_cursor"`
		}
		path := "/api/v1/audit?limit=200"
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		if status := f.REST(f.Admin).JSON("GET", path, nil, &out); status != 200 {
			f.T.Fatalf("audit: status %d", status)
		}
		all = append(all, out.Rows...)
		if out.Next == "" {
			return all
		}
		cursor = out.Next
	}
}

// Era is an MCP protocol revision to speak.
type Era string

// The two eras.
const (
	Modern Era = "2026-07-28"
	Legacy Era = "2025-11-25"
)

// Eras lists both.
func Eras() []Era { return []Era{Modern, Legacy} }

// bearer adds a credential to every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// MCP connects the SDK's own client in this era.
func (f *Client) MCP(token string, era Era, o *mcp.ClientOptions) *mcp.ClientSession {
	f.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	session, err := f.DialMCP(ctx, token, era, o)
	if err != nil {
		f.T.Fatalf("MCP %s: %v", era, err)
	}
	f.T.Cleanup(func() { _ = session.Close() })
	return session
}

// DialMCP is MCP for where failing is no surprise. The caller closes the session.
func (f *Client) DialMCP(ctx context.Context, token string, era Era, o *mcp.ClientOptions) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "harness", Version: "1"}, o)
	transport := &mcp.StreamableClientTransport{
		Endpoint:   f.URL + "/mcp",
		HTTPClient: &http.Client{Transport: bearer{token, &http.Transport{MaxIdleConnsPerHost: 64}}},
	}
	return client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: string(era)})
}

// PostMCP posts a body to /mcp as it is, with the headers of this era.
func (f *Client) PostMCP(token string, era Era, header http.Header, body string) (*http.Response, []byte) {
	f.T.Helper()
	req, err := http.NewRequest("POST", f.URL+"/mcp", bytes.NewReader([]byte(body)))
	if err != nil {
		f.T.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", string(era))
	req.Header.Set("Authorization", "Bearer "+token)
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.T.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.T.Fatalf("read: %v", err)
	}
	return resp, b
}
