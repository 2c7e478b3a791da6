package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

const (
	modern = "2026-07-28"
	legacy = "2025-11-25"
)

// proxy stands between a client and drover serve. It gives every request the
// PAT, for clients that can't send a header, and remembers in which era they called.
// Host and Origin pass as they came: the server's own checks are under test.
type proxy struct {
	url string

	mu   sync.Mutex
	eras map[string]int // tools/call requests by their header Mcp-Protocol-Version
}

// front starts a proxy before s. With an empty PAT it leaves the client's own
// Authorization alone.
func front(t *testing.T, s *harness.Deployment, pat string) *proxy {
	t.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{eras: map[string]int{}}
	rp := &httputil.ReverseProxy{
		FlushInterval: -1, // event streams pass as they come
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			if pat != "" {
				r.Out.Header.Set("Authorization", "Bearer "+pat)
			}
		},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client is gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.note(r.Header.Get("Mcp-Protocol-Version"), body)
		rp.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL + "/mcp"
	return p
}

func (p *proxy) note(version string, body []byte) {
	var message struct{ Method string }
	if json.Unmarshal(body, &message) != nil || message.Method != "tools/call" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eras[version]++
}

// spoke fails the test unless there were calls and all were of this revision.
func (p *proxy) spoke(t *testing.T, revision string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.eras) != 1 || p.eras[revision] == 0 {
		t.Errorf("calls by protocol revision: %v, want %s alone", p.eras, revision)
	}
}
