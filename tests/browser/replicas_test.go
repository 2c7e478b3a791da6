package browser

import (
	"bytes"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestPageBehindTwoReplicas: the page works behind a balancer that gives each request to the
// next replica, on a wide screen and a narrow one.
func TestPageBehindTwoReplicas(t *testing.T) {
	node, chromium := browser(t)

	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t)}})
	b := a.Beside()
	a.Host("web-01")
	b.WaitState("web-01", "online")
	balancer := roundRobin(t, a.URL, b.URL)

	cmd := exec.CommandContext(t.Context(), node, "replicas.mjs")
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium, "URL="+balancer, "REPLICAS="+a.URL+" "+b.URL, "PAT="+a.Admin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("%s", &out)
}

// roundRobin gives each request to the next of these servers.
func roundRobin(t *testing.T, servers ...string) (address string) {
	t.Helper()
	var to []*url.URL
	for _, s := range servers {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		to = append(to, u)
	}
	var n atomic.Uint64
	srv := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to[n.Add(1)%uint64(len(to))])
		r.Out.Host = r.In.Host
		r.SetXForwarded()
	}, FlushInterval: -1})
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}
