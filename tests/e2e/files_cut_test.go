package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/tests/harness"
)

// TestATransferThatWasCutHoldsNoPlace: a transfer whose connection is cut, and whose client has
// been answered, is soon told to end, and ends on record, whatever its host does or doesn't say:
// though it might have run for a day.
func TestATransferThatWasCutHoldsNoPlace(t *testing.T) {
	t.Parallel()
	says := func(t *testing.T, a *harness.RawAgent, id string) {
		comeBack(t, a)
		tellFate(t, a, id, `"state":"running"`)
	}
	for _, c := range []struct {
		way, name     string
		then          func(t *testing.T, a *harness.RawAgent, id string)
		state, reason string
		says          string
	}{
		{"GET", "its host doesn't come back", func(*testing.T, *harness.RawAgent, string) {}, "outcome_unknown", "agent_away", "did not come back within 2m0s"},
		{"GET", "its host says that it runs", says, "outcome_unknown", "", "the connection that its file went over was lost, but raw-01 did not confirm that it ended"},
		{"PUT", "its host says that it runs", says, "outcome_unknown", "", "the connection that its file went over was lost, but raw-01 did not confirm that it ended"},
		{"PUT", "its host ends it", func(t *testing.T, a *harness.RawAgent, id string) {
			says(t, a, id)
			if v, err := a.Next(protocol.TypeCancel); err != nil || v.(*protocol.Cancel).ID != id {
				t.Fatalf("%+v %v", v, err)
			}
			respond(t, a, id, nil, `{"code":"cancelled","message":"x"}`)
		}, "cancelled", "cut", ""},
	} {
		t.Run(c.way+", "+c.name, func(t *testing.T) {
			t.Parallel()
			f := harness.New(t, harness.Options{Engine: harness.SQLite, ResumeWait: 48 * time.Hour})
			a := f.RawAgent("raw-01")
			connect(t, a, "journal.boot")
			var body io.Reader
			if c.way == "PUT" {
				body = strings.NewReader("0123456789")
			}
			answer := transfer(&f.Client, c.way, "", body)
			req, err := a.Request()
			if err != nil {
				t.Fatal(err)
			}
			a.Close()
			c.then(t, a, req.ID)
			defer a.Close()
			got := <-answer
			var call harness.CallResult
			harness.Eventually(t, 150*time.Second, "the end of the call", func() bool {
				call = harness.CallResult{}
				f.REST(f.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &call)
				return call.State == c.state
			})
			if call.Error == nil || call.Error.Reason != c.reason || !strings.Contains(call.Error.Message, c.says) {
				t.Errorf("the record says %s %+v", call.State, call.Error)
			}
			if got.status != http.StatusBadGateway && (c.state != "cancelled" || got.status < 400) {
				t.Errorf("the answer is %+v", got)
			}
			harness.Eventually(t, 10*time.Second, "no open call", func() bool { return gauge(t, &f.Client, "drover_calls_open") == 0 })
		})
	}
}

// TestAnUploadThatWasWholeBeforeTheCut: what a host has completed before its connection was lost
// is no failure: its word, when it's back, is the record's.
func TestAnUploadThatWasWholeBeforeTheCut(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{ResumeWait: 48 * time.Hour})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	const body = "0123456789"
	answer := transfer(&f.Client, "PUT", "", io.MultiReader(strings.NewReader(body)))
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	if err := readFile(a); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if got := <-answer; got.status != http.StatusBadGateway || got.error.Code != "outcome_unknown" {
		t.Errorf("%+v", got)
	}
	comeBack(t, a)
	defer a.Close()
	tellFate(t, a, req.ID, `"state":"done","ended":true,"ago_ms":5`)
	respond(t, a, req.ID, capability.FSUploadOut{Path: "/srv/a", Received: 10, Complete: true, Size: 10, SHA256: hexOf(body), Mode: "0644"}, "")
	if got := await(t, &f.Client, req.ID); got.State != "succeeded" {
		t.Errorf("%+v %+v", got, got.Error)
	}
}
