package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/wsconn"
	"github.com/drover-fleet/drover/tests/harness"
)

// stutter is something on the way that passes each frame of a session on twice, those apart
// that count (open and credit) or end it.
type stutter struct {
	t       *testing.T
	server  string
	doubled [2]atomic.Int64 // requests and cancels, responses
}

func newStutter(t *testing.T, server string) (*stutter, string) {
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	s, rest := &stutter{t: t, server: server}, httputil.NewSingleHostReverseProxy(target)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == wsconn.Path {
			s.tunnel(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	}))
	t.Cleanup(ts.Close)
	return s, ts.URL
}

func (s *stutter) tunnel(w http.ResponseWriter, r *http.Request) {
	agent, err := wsconn.Accept(w, r)
	if err != nil {
		s.t.Error(err)
		return
	}
	server, err := wsconn.Dial(context.Background(), s.server, http.DefaultClient, nil)
	if err != nil {
		_ = agent.Close(0, "")
		return
	}
	agent.Established()
	server.Established()
	done := make(chan struct{})
	go func() { defer close(done); pass(server, agent, &s.doubled[0]) }()
	pass(agent, server, &s.doubled[1])
	<-done
}

// pass ends both ends when one has ended.
func pass(from, to *wsconn.Conn, calls *atomic.Int64) {
	defer func() { _ = from.Close(0, ""); _ = to.Close(0, "") }()
	for {
		binary, msg, err := from.Read(context.Background())
		if err != nil {
			return
		}
		times := 1
		if v, err := protocol.Decode(msg); !binary && err == nil {
			switch v.(type) {
			case *protocol.Hello, *protocol.Challenge, *protocol.Auth, *protocol.Welcome, *protocol.Open, *protocol.Credit, *protocol.Goodbye:
			case *protocol.Request, *protocol.Cancel, *protocol.Response:
				calls.Add(1)
				times = 2
			default:
				times = 2
			}
		}
		for range times {
			if to.Write(context.Background(), binary, msg) != nil {
				return
			}
		}
	}
}

// TestADoubledFrameChangesNoOutcome: whatever comes twice over a tunnel, a call runs once and
// ends in its own outcome.
func TestADoubledFrameChangesNoOutcome(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	st, way := newStutter(t, f.URL)
	f.Agent("web-01", func(c *agent.Config) { c.Server = way })
	admin := f.REST(f.Admin)

	long := newHeld(t) // its second request comes while it runs
	id := begin(t, &f.Client, "web-01", long.args())
	long.begun(t)
	for range 20 { // theirs mostly when they have ended
		if status, res := admin.Call("web-01", "fs_stat", map[string]any{"path": "/"}); status != 200 || res.State != "succeeded" {
			t.Fatalf("fs_stat: %d %s %+v", status, res.State, res.Error)
		}
	}
	short := newHeld(t)
	cancelled := begin(t, &f.Client, "web-01", short.args())
	short.begun(t)
	if status := admin.JSON("POST", "/api/v1/calls/"+cancelled+"/cancel", map[string]any{}, nil); status >= 300 {
		t.Errorf("cancel: %d", status)
	}
	if res := await(t, &f.Client, cancelled); res.State != "cancelled" || short.lines() != 1 || strings.Contains(res.Stdout(), "ended") {
		t.Errorf("the cancelled call: %s %s %+v, effect %d times", res.State, res.Result, res.Error, short.lines())
	}
	long.release(t)
	long.ended(t, await(t, &f.Client, id))
	if there, back := st.doubled[0].Load(), st.doubled[1].Load(); there < 23 || back < 22 {
		t.Errorf("%d frames to the agent and %d from it were doubled", there, back)
	}
}
