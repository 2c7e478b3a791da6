package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// Requests, as a front sees them.
const (
	starts  = "start"
	polls   = "poll"
	cancels = "cancel"
	puts    = "put"
	gets    = "get"
	tokens  = "token"
)

// whichOf names a request's kind.
func whichOf(r *http.Request) string {
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/calls"):
		return starts
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/cancel"):
		return cancels
	case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/calls/"):
		return polls
	case strings.HasSuffix(r.URL.Path, "/files") && r.Method == http.MethodPut:
		return puts
	case strings.HasSuffix(r.URL.Path, "/files") && r.Method == http.MethodGet:
		return gets
	case strings.HasSuffix(r.URL.Path, "/pats") && r.Method == http.MethodPost:
		return tokens
	}
	return ""
}

// spoilt is what a front answers instead of the server.
type spoilt struct {
	status int
	body   string
	after  bool // the server has the request, and its answer is lost
	half   bool // half of its answer comes
}

var (
	badGateway  = spoilt{status: http.StatusBadGateway, body: "<html>502 Bad Gateway</html>"}
	lostGateway = spoilt{status: http.StatusBadGateway, body: "<html>502 Bad Gateway</html>", after: true}
	noDatabase  = spoilt{status: http.StatusServiceUnavailable, body: `{"error":{"code":"unavailable","message":"Drover's database doesn't answer; try again"}}`}
)

// inFront is a proxy that spoils the first answers to each kind of request.
type inFront struct {
	url  string
	seen map[string]*atomic.Int32
}

func putInFront(t *testing.T, server string, spoil map[string][]spoilt) *inFront {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	f := &inFront{seen: map[string]*atomic.Int32{"": {}, starts: {}, polls: {}, cancels: {}, puts: {}, gets: {}, tokens: {}}}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := whichOf(r)
		n := int(f.seen[kind].Add(1))
		if n > len(spoil[kind]) {
			proxy.ServeHTTP(w, r)
			return
		}
		s := spoil[kind][n-1]
		whole := httptest.NewRecorder()
		if s.after || s.half {
			proxy.ServeHTTP(whole, r)
		}
		if s.half {
			maps.Copy(w.Header(), whole.Header())
			w.WriteHeader(whole.Code)
			_, _ = io.CopyN(w, whole.Body, int64(whole.Body.Len()/2))
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(s.status)
		_, _ = io.WriteString(w, s.body)
	}))
	t.Cleanup(front.Close)
	f.url = front.URL
	return f
}

// What answers badly between the CLI and its call, or for a while doesn't answer, neither ends the
// waiting nor runs the command twice.
func TestACallOutlastsBadAnswers(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f, u := fleet1(t)
	timeout := spoilt{status: http.StatusGatewayTimeout}
	limited := spoilt{status: http.StatusTooManyRequests, body: `{"error":{"code":"rate_limited","reason":"principal_waits","message":"too many wait; the call goes on"}}`}
	for name, spoil := range map[string]map[string][]spoilt{
		"polls without a database":                                {polls: {noDatabase, noDatabase}},
		"polls without a server":                                  {polls: {badGateway, badGateway}},
		"polls that wait too long":                                {polls: {timeout}},
		"polls that are too many":                                 {polls: {limited}},
		"the first answer is lost":                                {starts: {lostGateway}},
		"the first request comes nowhere":                         {starts: {badGateway}},
		"the first answer is lost, and then the database is away": {starts: {lostGateway, noDatabase}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := putInFront(t, f.URL, spoil)
			ran := filepath.Join(t.TempDir(), "ran")
			got := u.drover(t.Context(), "call", "--url", front.url, "--agent", "web-01", "shell_exec", "command=echo x >> "+ran+"; sleep 2; echo done; exit 7")
			if got.code != 7 || got.out != "done\n" || got.err != "" {
				t.Errorf("%+v", got)
			}
			if b, err := os.ReadFile(ran); err != nil || string(b) != "x\n" {
				t.Errorf("ran %q, %v", b, err)
			}
			for kind, list := range spoil {
				if n := int(front.seen[kind].Load()); n <= len(list) {
					t.Errorf("only %d of %s", n, kind)
				}
			}
		})
	}
}

// What the server itself turns away at first has started nothing, and is said at once.
func TestACallThatIsTurnedAwayIsFinal(t *testing.T) {
	f, u := fleet1(t)
	front := putInFront(t, f.URL, map[string][]spoilt{starts: {noDatabase}})
	got := u.drover(t.Context(), "call", "--url", front.url, "--agent", "web-01", "diag_system")
	if got.code != exitCall || !strings.HasPrefix(got.err, "drover: unavailable: Drover's database") || front.seen[starts].Load() != 1 {
		t.Errorf("%+v after %d requests", got, front.seen[starts].Load())
	}
}

// A call of which no more can be learnt is never said not to have run, and what to ask comes with
// it.
func TestACallWhoseEndIsNotKnown(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f, u := fleet1(t)
	refused := spoilt{status: http.StatusUnauthorized, body: `{"error":{"code":"unauthenticated","message":"the token was revoked"}}`}
	for name, c := range map[string]struct {
		spoil map[string][]spoilt
		want  []string
	}{
		"its id is known":    {map[string][]spoilt{polls: {refused}}, []string{"the call ", "the token was revoked", "GET /api/v1/calls/", "audit list --call-id "}},
		"its id isn't known": {map[string][]spoilt{starts: {lostGateway, refused}}, []string{"may have run", "the token was revoked", "nothing runs twice"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := putInFront(t, f.URL, c.spoil)
			ran := filepath.Join(t.TempDir(), "ran")
			args := []string{"call", "--agent", "web-01", "--idempotency-key", "k " + name, "shell_exec", "command=echo x >> " + ran + "; sleep 2; echo done"}
			got := u.drover(t.Context(), append(args, "--url", front.url)...)
			if got.code != exitCall || got.out != "" || !strings.HasPrefix(got.err, "drover: outcome_unknown: ") || !strings.Contains(got.err, `--idempotency-key "k `+name+`"`) {
				t.Errorf("%+v", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got.err, want) {
					t.Errorf("no %q in %s", want, got.err)
				}
			}
			// What it tells to do works.
			if again := u.drover(t.Context(), args...); again.code != 0 || again.out != "done\n" {
				t.Errorf("asked again: %+v", again)
			}
			if b, err := os.ReadFile(ran); err != nil || string(b) != "x\n" {
				t.Errorf("ran %q, %v", b, err)
			}
		})
	}
}

// A cancel is asked for until somebody has heard it.
func TestACancelOutlastsBadAnswers(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f, u := fleet1(t)
	for name, list := range map[string][]spoilt{"unheard": {noDatabase, badGateway}, "its answer is lost": {lostGateway}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := putInFront(t, f.URL, map[string][]spoilt{cancels: list})
			begun := filepath.Join(t.TempDir(), "begun")
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			done := make(chan result, 1)
			go func() {
				done <- u.drover(ctx, "call", "--url", front.url, "--agent", "web-01", "shell_exec", "command=echo begun; touch "+begun+"; exec sleep 600")
			}()
			harness.Eventually(t, 10*time.Second, "the command runs and is waited for", func() bool {
				_, err := os.Stat(begun)
				return err == nil && front.seen[polls].Load() > 0
			})
			interrupt()
			if got := <-done; got.code != exitCall || got.out != "begun\n" || !strings.Contains(got.err, "\ndrover: cancelled: ") {
				t.Errorf("%+v", got)
			}
			if n := int(front.seen[cancels].Load()); n != len(list)+1 {
				t.Errorf("%d cancels", n)
			}
		})
	}
}

// How long it's asked again has a bound, which an answer's wish moves only so far.
func TestAskingAgainHasAnEnd(t *testing.T) {
	away := func(status int, after string, body string) error {
		return problem(&http.Response{StatusCode: status, Header: http.Header{"Retry-After": {after}}}, []byte(body))
	}
	for name, c := range map[string]struct {
		begun bool
		err   error
		took  time.Duration
		tries int
	}{
		"nobody there, and nothing sent":  {false, fmt.Errorf("x: %w", errDial), 0, 1},
		"nobody there any more":           {true, fmt.Errorf("x: %w", errDial), retries * retryPause, retries + 1},
		"a proxy's 502":                   {false, away(502, "", "bad gateway"), retries * retryPause, retries + 1},
		"a proxy's 503 with a time":       {false, away(503, "3", "{}"), retries * 3 * time.Second, retries + 1},
		"a proxy's 503 with a long time":  {true, away(503, "3600", "{}"), retries * maxPause, retries + 1},
		"another program's JSON":          {false, away(503, "", `{"error":{"code":"SERVICE_DOWN","message":"x"}}`), retries * retryPause, retries + 1},
		"a proxy's 403":                   {true, away(403, "", "no"), 0, 1},
		"the server's own 503":            {false, away(503, "", noDatabase.body), 0, 1},
		"the server's own 503, once sent": {true, away(503, "", noDatabase.body), retries * retryPause, retries + 1},
		"the server's own 404":            {true, away(404, "", `{"error":{"code":"not_found","message":"x"}}`), 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, tries := time.Now(), 0
			_, err := persist(t.Context(), c.begun, func() error { tries++; return c.err })
			if !errors.Is(err, c.err) || tries != c.tries || time.Since(began) != c.took {
				t.Errorf("%s: %d tries in %s, %v", name, tries, time.Since(began), err)
			}
		})
	}
}

// A file whose answer was lost may be there, and isn't said not to be; the copy that goes on finds
// it.
func TestACopyWhoseAnswerIsLost(t *testing.T) {
	f, u := fleet1(t)
	content := noise(2 << 20)
	src := put(t, filepath.Join(t.TempDir(), "src"), content, 0o600)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a copy that goes on":     {[]string{src}, 0, "going on in"},
		"one that tries once":     {[]string{"--resume=false", src}, exitCall, "drover: outcome_unknown: web-01 may have got the whole file"},
		"one from standard input": {[]string{"-"}, exitCall, "drover: outcome_unknown: web-01 may have got the whole file"},
	} {
		t.Run(name, func(t *testing.T) {
			front := putInFront(t, f.URL, map[string][]spoilt{puts: {lostGateway}})
			dst := filepath.Join(t.TempDir(), "dst")
			in := u
			in.stdin = string(content)
			got := in.drover(t.Context(), append([]string{"cp", "--url", front.url}, append(c.args, "web-01:"+dst)...)...)
			if got.code != c.code || !strings.Contains(got.err, c.want) || front.seen[puts].Load() != 1 || !bytes.Equal(get(t, dst), content) {
				t.Errorf("%+v after %d tries", got, front.seen[puts].Load())
			}
		})
	}
}

// A download that breaks off says where the reason is.
func TestADownloadThatBreaksOff(t *testing.T) {
	f, u := fleet1(t)
	there := put(t, filepath.Join(t.TempDir(), "there"), noise(2<<20), 0o600)
	front := putInFront(t, f.URL, map[string][]spoilt{gets: {{half: true}}})
	got := u.drover(t.Context(), "cp", "--url", front.url, "--resume=false", "web-01:"+there, filepath.Join(t.TempDir(), "here"))
	id := regexp.MustCompile("broke off after [0-9]+ bytes .*drover audit list --call-id ([0-9a-f-]{36})").FindStringSubmatch(got.err)
	if got.code != exitCall || id == nil {
		t.Fatalf("%+v", got)
	}
	if shown := u.drover(t.Context(), "audit", "list", "--call-id", id[1]); shown.code != 0 || !strings.Contains(shown.out, "fs_download") {
		t.Errorf("%+v", shown)
	}
}

// What an administrator changes may be changed though the answer was lost.
func TestAChangeWhoseAnswerIsLost(t *testing.T) {
	f, u := fleet1(t)
	front := putInFront(t, f.URL, map[string][]spoilt{tokens: {lostGateway}})
	got := u.drover(t.Context(), "pat", "create", "--url", front.url, "--name", "twice", "--agents", "all", "--tools", "all")
	if got.code != exitFailed || !strings.HasPrefix(got.err, "drover: outcome_unknown: it may have been done") || front.seen[tokens].Load() != 1 {
		t.Errorf("%+v", got)
	}
	if list := u.drover(t.Context(), "pat", "list"); !strings.Contains(list.out, "twice") {
		t.Errorf("%+v", list)
	}
}
