package restapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// logs is a log that a test reads while others write.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A client that leaves in the middle of a body has failed, not Drover: at each operation
// that takes one.
func TestACutBodyIsTheClientsFault(t *testing.T) {
	var log logs
	w := newWorld(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	pat := w.pat("p", true, everyAgent, everyTool)
	cut := 0
	for _, path := range []string{"/calls", "/pats", "/enrolments", "/session"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprintf(conn, "POST /api/v1%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", path, pat); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if a := (answerOf{resp.StatusCode, resp.Header, string(body)}); a.status != 400 || a.code() != "bad_args" || !strings.Contains(a.body, "body_cut") {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
		cut++
	}
	if log.String() != "" {
		t.Errorf("the log speaks of a failure: %s", log.String())
	}
	if got := w.refusals()["bad_args"]; got != 1 {
		t.Errorf("%d refused calls on record after %d cut bodies", got, cut)
	}
}

// broken is a store that can't list.
type broken struct{ Store }

var errDisk = errors.New("the disk is on fire")

func (broken) Calls(context.Context, store.CallFilter) ([]fleet.Call, string, error) {
	return nil, "", errDisk
}

// An answer that refers to the log is followed by the cause in it.
func TestInternalErrorsAreInTheLog(t *testing.T) {
	var log logs
	w := newWorld(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Store = broken{c.Store}
	})
	pat := w.pat("p", true, everyAgent, everyTool)
	a := w.do("GET", "/api/v1/calls", pat, "")
	if a.status != 500 || a.code() != "internal" || strings.Contains(a.body, errDisk.Error()) {
		t.Errorf("HTTP %d %s", a.status, a.body)
	}
	for _, want := range []string{"level=ERROR", errDisk.Error(), "operation=list-calls"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, log.String())
		}
	}
}
