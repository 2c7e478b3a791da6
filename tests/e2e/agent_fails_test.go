package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAnAgentThatFailsInside: an agent that says that it has failed inside isn't taken for this
// server: through no way in, and in the log it's a few lines a minute.
func TestAnAgentThatFailsInside(t *testing.T) {
	t.Parallel()
	var log written
	f := harness.New(t, harness.Options{LogTo: &log})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	const says = `{"code":"internal","reason":"server_fault","message":"a defect of Drover's own; the server's log has the cause"}`
	const want = `the agent on raw-01 failed inside: raw-01 says: "a defect of Drover's own; the server's log has the cause"`
	fails := func() string {
		t.Helper()
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		respond(t, a, req.ID, nil, says)
		return req.ID
	}
	const times = 12
	for i := range times {
		method := []string{"GET", "PUT", "HEAD"}[i%3]
		var body io.Reader
		if method == "PUT" {
			body = strings.NewReader("x")
		}
		answer := transfer(&f.Client, method, "", body)
		id := fails()
		got := <-answer
		if got.status != http.StatusBadGateway || method != "HEAD" && (got.error.Code != "internal" || got.error.Reason != "agent_fault" || got.error.Message != want) {
			t.Errorf("%s: %+v", method, got)
		}
		if call := await(t, &f.Client, id); call.State != "failed" || call.Error.Message != want {
			t.Errorf("the record says %s %+v", call.State, call.Error)
		}
	}
	session := f.MCP(f.Admin, harness.Modern, nil)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		got, err := session.CallTool(t.Context(), params("fs_read", map[string]any{"agent_id": a.ID, "path": "/srv/a"}))
		if err != nil || !got.IsError || !strings.Contains(textOf(got), want) {
			t.Errorf("%+v %v", got, err)
		}
	}()
	fails()
	<-answered
	text := log.String()
	if n := strings.Count(text, `level=WARN msg="an agent failed inside"`); n < 1 || n > 10 { // a minute may have passed
		t.Errorf("%d lines of %d calls", n, times+1)
	}
	if strings.Contains(text, "level=ERROR") {
		t.Errorf("an operator is told to look for a fault of the server:\n%s", text)
	}
}
