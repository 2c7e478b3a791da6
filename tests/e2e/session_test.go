package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// signIn exchanges a PAT for the page's cookie, as the page does.
func signIn(t *testing.T, d *harness.Deployment, pat string) (cookie string) {
	t.Helper()
	status, header, body := d.REST("").Whole("POST", "/api/v1/session", `{"pat":"`+pat+`"}`)
	cookie, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	if status != http.StatusNoContent || cookie == "" {
		t.Fatalf("sign-in: HTTP %d %s", status, body)
	}
	return cookie
}

// withCookie asks for the page's whoami, or signs out.
func withCookie(t *testing.T, d *harness.Deployment, method, path, cookie string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cookie", cookie)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func whoami(t *testing.T, d *harness.Deployment, cookie string) int {
	t.Helper()
	return withCookie(t, d, "GET", "/api/v1/whoami", cookie)
}

// signedOut waits until a cookie is refused; five seconds are promised.
func signedOut(t *testing.T, d *harness.Deployment, cookie, where string) {
	t.Helper()
	harness.Eventually(t, 5*time.Second, "the session is dead on "+where, func() bool { return whoami(t, d, cookie) == 401 })
}

// byTurns uses a session through all replicas in turn, as behind a balancer.
func byTurns(t *testing.T, ds []*harness.Deployment, cookie, when string) {
	t.Helper()
	for i := range 3 * len(ds) {
		if status := whoami(t, ds[i%len(ds)], cookie); status != 200 {
			t.Errorf("%s: request %d, through replica %d: HTTP %d", when, i, i%len(ds), status)
		}
	}
}

// TestASessionOnEveryReplica: who signs in on the page is signed in on all replicas, also on
// new ones and after restarts, until they sign out or their PAT is revoked, on any of them.
func TestASessionOnEveryReplica(t *testing.T) {
	a, b := replicas(t)
	both := []*harness.Deployment{a, b}
	token, id := a.PAT("page", "all", "all", false)
	left, kept := signIn(t, a, token), signIn(t, b, token)
	byTurns(t, both, left, "signed in on the first")
	byTurns(t, both, kept, "signed in on the second")

	if status := withCookie(t, b, "DELETE", "/api/v1/session", left); status != 204 {
		t.Errorf("sign-out: HTTP %d", status)
	}
	if status := whoami(t, b, left); status != 401 {
		t.Errorf("signed out here: HTTP %d", status)
	}
	signedOut(t, a, left, "the other replica")

	c := b.Beside()
	signedOut(t, c, left, "a replica that is new")
	a.Server.Kill()
	a.Serve(addr(a))
	signedOut(t, a, left, "a replica that was killed and started again")
	three := []*harness.Deployment{a, b, c}
	byTurns(t, three, kept, "another session of the same PAT")

	if status, body := c.REST(c.Admin).Do("DELETE", "/api/v1/pats/"+id, ""); status >= 300 {
		t.Fatalf("revoke: HTTP %d %s", status, body)
	}
	for _, d := range three {
		signedOut(t, d, kept, "every replica after its PAT was revoked")
	}
}

// TestASignOutReachesReplicasLater: one that can't be told at once is told when NATS is back.
func TestASignOutReachesReplicasLater(t *testing.T) {
	t.Parallel()
	nats := harness.NewNATS(t)
	a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", nats.URL}})
	b := a.Beside()
	token, _ := a.PAT("page", "all", "all", false)
	left, kept := signIn(t, a, token), signIn(t, a, token)
	nats.Kill()
	withCookie(t, a, "DELETE", "/api/v1/session", left)
	if status := whoami(t, a, left); status != 401 {
		t.Errorf("signed out here: HTTP %d", status)
	}
	nats.Start()
	harness.Eventually(t, 20*time.Second, "the other replica knows", func() bool { return whoami(t, b, left) == 401 })
	byTurns(t, []*harness.Deployment{a, b}, kept, "another session")
}

// TestASessionOutlivesTheServer: a restart, also by kill -9, asks nobody for their PAT again
// and lets no session live again that was ended.
func TestASessionOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			token, _ := d.PAT("page", "all", "all", false)
			left, kept := signIn(t, d, token), signIn(t, d, token)
			withCookie(t, d, "DELETE", "/api/v1/session", left)
			d.Server.Kill()
			d.Serve(addr(d))
			if status := whoami(t, d, left); status != 401 {
				t.Errorf("signed out before: HTTP %d", status)
			}
			if status := whoami(t, d, kept); status != 200 {
				t.Errorf("signed in before: HTTP %d", status)
			}
		})
	}
}
