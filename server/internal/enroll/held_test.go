package enroll_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/server/internal/enroll"
)

// Whoever holds a body back, without any credential, holds nothing that others need.
func TestHeldBodiesDoNotStopEnrolment(t *testing.T) {
	r := newRig(t)
	for range 100 {
		c, err := net.Dial("tcp", r.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		// The server asks for the body once the handler reads it.
		if _, err := io.WriteString(c, "POST /agent/v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len("HTTP/1.1 100"))
		if _, err := io.ReadFull(c, first); err != nil || string(first) != "HTTP/1.1 100" {
			t.Fatalf("%q %v", first, err)
		}
		if _, err := io.WriteString(c, "{"); err != nil {
			t.Fatal(err)
		}
	}
	if status, _ := r.post(r.request(r.token(enroll.Spec{Agent: "web-01"}), newKey())); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

// slow is a store that answers when it's let.
type slow struct {
	enroll.Store
	asked, let chan struct{}
}

func (s *slow) EnrolToken(ctx context.Context, id string) (*enroll.Token, error) {
	s.asked <- struct{}{}
	<-s.let
	return s.Store.EnrolToken(ctx, id)
}

func TestBusyEnrolmentSaysWhenToComeBack(t *testing.T) {
	r := newRig(t)
	st := &slow{Store: r.db, asked: make(chan struct{}), let: make(chan struct{})}
	srv := httptest.NewServer(enroll.New(enroll.Config{Store: st, ServerKey: r.key}))
	defer srv.Close()
	body, err := json.Marshal(r.request(r.token(enroll.Spec{Agent: "web-01"}), newKey()))
	if err != nil {
		t.Fatal(err)
	}
	post := func() (int, string, error) {
		resp, err := http.Post(srv.URL, "application/json", strings.NewReader(string(body)))
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After") + " " + string(b), err
	}
	const slots = 32
	ended := make(chan error, slots)
	for range slots {
		go func() {
			status, text, err := post()
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", status, text)
			}
			ended <- err
		}()
	}
	for range slots {
		<-st.asked
	}
	if status, text, err := post(); err != nil || status != http.StatusTooManyRequests || text[0] < '1' || text[0] > '4' || text[1] != ' ' || !strings.Contains(text, "rate_limited") {
		t.Errorf("%d %s %v", status, text, err)
	}
	close(st.let)
	for range slots {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
