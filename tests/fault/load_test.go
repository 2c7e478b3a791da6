package fault_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestThousandCalls: a thousand commands on one agent, 64 at a time: none is lost, none runs
// twice, each answer is its own call's.
func TestThousandCalls(t *testing.T) {
	const calls, atOnce = 1000, 64
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	token, _ := f.PAT("many", "all", "all", false)
	log := filepath.Join(t.TempDir(), "log")
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for n := range calls {
		slots <- struct{}{}
		rest := f.REST(token)
		all.Go(func() {
			defer func() { <-slots }()
			want := fmt.Sprint("n", n)
			_, res := rest.Call("web-01", "shell_exec", map[string]any{"command": fmt.Sprintf("echo %s >> %s; echo %s", want, log, want)})
			if res.State != succeeded || res.Stdout() != want+"\n" {
				t.Errorf("%s: %s %q %+v", want, res.State, res.Stdout(), res.Error)
			}
		})
	}
	all.Wait()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, l := range strings.Fields(string(b)) {
		times[l]++
	}
	for n := range calls {
		if got := times[fmt.Sprint("n", n)]; got != 1 {
			t.Errorf("n%d ran %d times", n, got)
		}
	}
}

// TestSlowLink: 1 MB each way over a link of 1.6 Mbit/s and 300 ms, with a small call every
// second meanwhile.
func TestSlowLink(t *testing.T) {
	slowLink(t, 1<<20, fault.Link{Delay: 150 * time.Millisecond, Rate: 200_000}, time.Second)
}

// slowLink carries a file of this size to the agent and back over such a link. It arrives
// whole, the tunnel stays up, and a small call at each interval is answered within 3 s.
func slowLink(t *testing.T, size int, link fault.Link, every time.Duration) {
	f := harness.New(t, harness.Options{})
	proxy := fault.NewProxy(t, strings.TrimPrefix(f.URL, "http://"))
	a := f.Agent("web-01", func(c *agent.Config) { c.Server = proxy.URL() })
	conns := proxy.Accepted()
	proxy.Shape(link, link)
	sent := make([]byte, size)
	rand.Read(sent)
	path := filepath.Join(t.TempDir(), "file")
	target := fmt.Sprintf("%s/api/v1/agents/%s/files?path=%s", f.URL, a.ID, url.QueryEscape(path))

	var slowest time.Duration
	small := func() {
		began := time.Now()
		_, res := f.REST(f.Admin).Call(a.ID, "shell_exec", map[string]any{"command": "echo small"})
		took := time.Since(began)
		slowest = max(slowest, took)
		if res.State != succeeded || took > 3*time.Second {
			t.Errorf("a small call took %s and ended as %s %+v", took, res.State, res.Error)
		}
	}
	for _, way := range []struct {
		method string
		body   []byte
	}{{http.MethodPut, sent}, {http.MethodGet, nil}} {
		began := time.Now()
		ended := make(chan error, 1)
		go func() {
			got, err := transfer(way.method, target, f.Admin, way.body)
			if err == nil && way.body == nil && sha256.Sum256(got) != sha256.Sum256(sent) {
				err = fmt.Errorf("%d bytes came back, and not those that were sent", len(got))
			}
			ended <- err
		}()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for going := true; going; {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatalf("%s: %v", way.method, err)
				}
				going = false
			case <-tick.C:
				small()
			}
		}
		t.Logf("%s of %d bytes took %s; the slowest small call %s", way.method, size, time.Since(began).Round(time.Millisecond), slowest.Round(time.Millisecond))
	}
	if on, err := os.ReadFile(path); err != nil || !bytes.Equal(on, sent) {
		t.Errorf("the file on the host isn't the one that was sent: %v", err)
	}
	if now := proxy.Accepted(); now != conns {
		t.Errorf("the agent connected again: %d connections, then %d", conns, now)
	}
}

// transfer sends or fetches a file and returns what was answered.
func transfer(method, target, token string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(resp.Status + ": " + string(got))
	}
	return got, err
}
