package mcpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sse begins an event stream as the SDK does.
func sse(s *stream) {
	s.Header().Set("Cache-Control", "no-cache")
	s.Header().Set("Content-Type", "text/event-stream")
	s.Header().Set("Connection", "keep-alive")
}

func TestStreamPulses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		s := newStream(rec, false, true, nil)
		written := func() string {
			synctest.Wait()
			s.mu.Lock() // the recorder is written to under it
			defer s.mu.Unlock()
			return rec.Body.String()
		}
		sse(s)
		time.Sleep(700 * time.Millisecond)
		if got := written(); got != "" {
			t.Errorf("a byte after 0.7 s: %q", got)
		}
		time.Sleep(300 * time.Millisecond)
		got := written()
		s.mu.Lock()
		if got != ": ka\n\n" || !rec.Flushed || rec.Header().Get("X-Accel-Buffering") != "no" || rec.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("after 1 s: %q, %v", got, rec.Header())
		}
		s.mu.Unlock()
		time.Sleep(31 * time.Second)
		if got := strings.Count(written(), ": ka\n\n"); got != 3 {
			t.Errorf("%d comments after 32 s", got)
		}
		if _, err := s.Write([]byte("data: x\n\n")); err != nil {
			t.Error(err)
		}
		if status, _, _ := s.end(); status != 0 || !strings.HasSuffix(rec.Body.String(), "data: x\n\n") {
			t.Errorf("status %d, %q", status, rec.Body)
		}
		n := len(written())
		time.Sleep(time.Minute)
		if _, err := s.Write([]byte("late")); err == nil || len(written()) != n {
			t.Error("something was written after the end")
		}
	})
}

func TestOnlyEventStreamsPulse(t *testing.T) {
	for _, begin := range []func(*stream){
		func(*stream) {}, // nothing yet
		func(s *stream) { s.Header().Set("Content-Type", "application/json"); _, _ = s.Write([]byte("{}")) },
		func(s *stream) { s.WriteHeader(http.StatusAccepted) },
		func(s *stream) { sse(s); s.WriteHeader(http.StatusNotFound) },
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := httptest.NewRecorder()
			s := newStream(rec, false, true, nil)
			begin(s)
			time.Sleep(time.Minute)
			synctest.Wait()
			if strings.Contains(rec.Body.String(), ":") {
				t.Errorf("a comment: %q", rec.Body)
			}
			s.end()
		})
	}
}

func TestRefusalsAreHeldBack(t *testing.T) {
	rec := httptest.NewRecorder()
	s := newStream(rec, false, false, nil)
	http.Error(s, "session not found", http.StatusNotFound)
	status, body, committed := s.end()
	if status != 404 || string(body) != "session not found\n" || committed || rec.Body.Len() != 0 {
		t.Errorf("%d %q committed=%v wrote %q", status, body, committed, rec.Body)
	}
}

func TestARefusalAfterTheFirstPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		s := newStream(rec, false, true, nil)
		sse(s)
		time.Sleep(time.Second)
		synctest.Wait()
		s.Header().Set("Content-Type", "application/json")
		s.WriteHeader(http.StatusBadRequest)
		_, _ = s.Write([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"unknown","data":{"code":"unknown_tool"}}}`))
		a := testAPI()
		a.finish(s, httptest.NewRequest(http.MethodPost, "/mcp", nil), who("pat:1"), nil)
		want := ": ka\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32602,\"message\":\"unknown\",\"data\":{\"code\":\"unknown_tool\"}}}\n\n"
		if diff := cmp.Diff(want, rec.Body.String()); diff != "" || rec.Code != 200 {
			t.Errorf("status %d\n%s", rec.Code, diff)
		}
	})
}

func TestAGETStreamSaysWhenToComeBack(t *testing.T) {
	rec := httptest.NewRecorder()
	s := newStream(rec, true, false, nil)
	sse(s)
	s.WriteHeader(http.StatusOK)
	_, _ = s.Write([]byte(": ok\n\n"))
	s.end()
	if rec.Body.String() != "retry: 2000\n\n: ok\n\n" {
		t.Errorf("%q", rec.Body)
	}
}

func TestRoute(t *testing.T) {
	for _, c := range []struct {
		name, http, version, session, agent, method string
		stateless                                   bool // the API's mode
		want                                        bool
		keeps                                       bool // the session header
	}{
		{"modern", "POST", "2026-07-28", "", "", "tools/call", false, false, false},
		{"later than modern", "POST", "v999", "s", "", "tools/call", false, false, true},
		{"modern initialize", "POST", "2026-07-28", "", "", "initialize", false, false, false},
		{"older initialize", "POST", "", "", "", "initialize", false, true, false},
		{"initialize with a version", "POST", "2025-11-25", "", "", "initialize", false, true, false},
		{"initialize with a stale session", "POST", "2025-11-25", "old", "", "initialize", false, true, false},
		{"hosted Claude's initialize", "POST", "", "", "Claude-User/1.0", "initialize", false, false, false},
		{"in a session", "POST", "2025-11-25", "s", "", "tools/call", false, true, true},
		{"without a session", "POST", "2025-11-25", "", "", "tools/call", false, false, false},
		{"GET in a session", "GET", "2025-11-25", "s", "", "", false, true, true},
		{"GET without", "GET", "", "", "", "", false, false, false},
		{"DELETE", "DELETE", "", "s", "", "", false, true, true},
		{"several replicas", "POST", "", "", "", "initialize", true, false, false},
		{"several replicas, a session", "POST", "2025-11-25", "s", "", "tools/call", true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.http, "/mcp", nil)
			for k, v := range map[string]string{versionHeader: c.version, sessionHeader: c.session, "User-Agent": c.agent} {
				if v != "" {
					r.Header.Set(k, v)
				}
			}
			a := &API{stateless: c.stateless}
			if got := a.stateful(r, c.method); got != c.want || (r.Header.Get(sessionHeader) != "") != c.keeps {
				t.Errorf("stateful %v, session header %q", got, r.Header.Get(sessionHeader))
			}
		})
	}
}

// What ends a call: everything that ends the request in the modern era, only the client's
// cancel in older ones.
func TestCallContext(t *testing.T) {
	broken := errors.New("EOF")
	for _, c := range []struct {
		name   string
		modern bool
		cause  error // nil: a plain cancel, as notifications/cancelled is
		want   bool
	}{
		{"modern, closed", true, nil, true},
		{"modern, revoked", true, errReplaced, true},
		{"older, cancelled", false, nil, true},
		{"older, session ended", false, broken, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				call, release := callContext(ctx, c.modern)
				cancel(c.cause)
				synctest.Wait()
				if got := call.Err() != nil; got != c.want {
					t.Errorf("cancelled: %v", got)
				}
				release()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // after a handle
		ctx, cancel := context.WithCancel(t.Context())
		call, release := callContext(ctx, true)
		release()
		cancel()
		synctest.Wait()
		if call.Err() != nil {
			t.Error("the call was cancelled after its handle was given")
		}
	})
}

func TestANewGETReplacesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Config{Log: testAPI().log})
		old := &request{stands: true}
		open := func(principal string) (*http.Request, func()) {
			r := httptest.NewRequest(http.MethodGet, "/mcp", nil).WithContext(t.Context())
			r.Header.Set(sessionHeader, "s")
			return r, a.takeOver(httptest.NewRecorder(), r, principal, old)
		}
		first, leave := open("pat:1")
		other, leaveOther := open("pat:2")
		done := make(chan func())
		go func() {
			_, leave := open("pat:1")
			done <- leave
		}()
		synctest.Wait()
		if !errors.Is(context.Cause(first.Context()), errReplaced) {
			t.Errorf("the first stream goes on: %v", first.Context().Err())
		}
		select {
		case <-done:
			t.Error("the second began before the first was gone")
		default:
		}
		leave()
		if old.stands {
			t.Error("the first still counts among those that stand once its successor may begin")
		}
		(<-done)()
		if other.Context().Err() != nil {
			t.Error("another principal's stream was ended")
		}
		leaveOther()
		if len(a.gets) != 0 {
			t.Errorf("%d streams are still known", len(a.gets))
		}
	})
}
