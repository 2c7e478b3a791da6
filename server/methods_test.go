package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// Every path says which methods it takes, answers HEAD as GET without a body, and takes JSON in
// whatever case its name is written.
func TestMethodsAndTypesOfPaths(t *testing.T) {
	f := harness.New(t, harness.Options{})
	do := func(method, path, kind, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, f.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Admin)
		if kind != "" {
			req.Header.Set("Content-Type", kind)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"HEAD", "/healthz", 200, ""}, {"HEAD", "/readyz", 200, ""}, {"HEAD", "/api/v1/agents", 200, ""}, {"HEAD", "/api/v1/agents/none", 404, ""},
		{"PUT", "/api/v1/agents", 405, "GET, HEAD"}, {"OPTIONS", "/api/v1/calls", 405, "GET, HEAD, POST"}, {"OPTIONS", "/api/v1/agents/web-01", 405, "GET, HEAD, PATCH, DELETE"},
		{"POST", "/api/v1/agents/web-01/files", 405, "GET, HEAD, PUT"}, {"HEAD", "/api/v1/none", 404, ""}, {"OPTIONS", "/api/v1/none", 404, ""},
		{"HEAD", "/mcp", 405, "POST"}, {"OPTIONS", "/mcp", 405, "POST"}, {"PUT", "/mcp", 405, "POST"},
	} {
		if resp := do(c.method, c.path, "", ""); resp.StatusCode != c.status || resp.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, Allow %q", c.method, c.path, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
	if resp := do("POST", "/api/v1/calls", "APPLICATION/JSON; Charset=UTF-8", `{"tool":"fs_stat","agent_id":"none","args":{"path":"/"}}`); resp.StatusCode != 404 {
		t.Errorf("JSON in capitals: %d", resp.StatusCode)
	}
}
