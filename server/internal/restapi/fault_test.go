package restapi

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// A fault inside, in the flight of one call, ends that call: as unknown where its request may
// have been sent, as not started where it certainly wasn't. The record says the same, the log
// says it once, and the others go on.
func TestAFaultInACallIsThatCallsAlone(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	pat := w.pat("p", false, everyAgent, everyTool)
	call := func(command string) answerOf {
		return w.do("POST", "/api/v1/calls", pat, fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","args":{"command":%q}}`, command))
	}
	started, goOn := make(chan struct{}), make(chan struct{})
	w.hosts.answer = func(_ context.Context, req *protocol.Request) *protocol.Response {
		switch {
		case strings.Contains(string(req.Args), "boom"):
			panic("boom")
		case strings.Contains(string(req.Args), "nothing"):
			return nil // no tunnel does this: what reads it panics
		case strings.Contains(string(req.Args), "long"):
			close(started)
			<-goOn
		}
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Result: jsontext.Value(processOK)}
	}
	var long answerOf
	var other sync.WaitGroup
	other.Go(func() { long = call("long") })
	<-started

	ended := func(command, state, code string) string {
		t.Helper()
		c := decode[Call](t, call(command))
		shown := decode[Call](t, w.do("GET", "/api/v1/calls/"+c.CallID, pat, ""))
		for from, c := range map[string]Call{"answered": c, "on record": shown} {
			if string(c.State) != state || c.Error == nil || string(c.Error.Code) != code || c.Error.Reason != "server_fault" {
				t.Errorf("%s, %s: %s %+v", command, from, c.State, c.Error)
			}
		}
		if n := w.said.with("a fault inside", c.CallID, "fault_test.go"); n != 1 {
			t.Errorf("%s: the log tells of the fault, with its stack, in %d lines", command, n)
		}
		return c.CallID
	}
	// More often than there are places for calls on one agent: each gives its own back.
	for range 65 {
		ended("boom", "outcome_unknown", "outcome_unknown")
	}
	c := decode[Call](t, call("nothing"))
	if string(c.State) != "outcome_unknown" || c.Error.Reason != "server_fault" {
		t.Errorf("no response and no error: %s %+v", c.State, c.Error)
	}

	ran, asked := w.hosts.executed(), 0
	w.hosts.boot = func() {
		if asked++; asked == 2 { // first by the request, then, before it's sent, by the flight
			panic("boom")
		}
	}
	ended("unsent", "not_started", "internal")
	if n := w.hosts.executed() - ran; n != 0 {
		t.Errorf("%d requests were sent of a call that wasn't started", n)
	}
	w.hosts.boot = nil

	if c := decode[Call](t, call("fine")); c.State != "succeeded" {
		t.Errorf("the next call: %s %+v", c.State, c.Error)
	}
	close(goOn)
	other.Wait()
	if c := decode[Call](t, long); c.State != "succeeded" {
		t.Errorf("the call that ran meanwhile: %s %+v", c.State, c.Error)
	}
	if n := w.calls.Open(); n != 0 {
		t.Errorf("%d calls are still open", n)
	}
}

// spoiled is a context whose values can't be had while a call that's on record is prepared.
type spoiled struct{ context.Context }

// Value implements context.Context.
func (c spoiled) Value(key any) any {
	if strings.Contains(string(debug.Stack()), "(*flight).prepare") {
		panic("boom")
	}
	return c.Context.Value(key)
}

// A fault between a call's intent and its way ends the call as one that wasn't started, on record
// too, and nothing is held for it.
func TestAFaultBetweenIntentAndWay(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	who, err := w.tokens.Token(w.pat("p", false, everyAgent, everyTool))
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.calls.Call(spoiled{t.Context()}, who, dispatch.Request{Tool: "shell_exec", Agent: jsontext.Value(`"web-01"`), Args: jsontext.Value(`{"command":"true"}`), Edge: "rest"})
	if err != nil || res.State != fleet.NotStarted || res.Err == nil || res.Err.Reason != "server_fault" {
		t.Fatalf("%v %+v %v", res.State, res.Err, err)
	}
	shown, err := w.calls.Result(t.Context(), who, res.CallID, 0)
	if err != nil || shown.State != res.State || shown.Err == nil || *shown.Err != *res.Err {
		t.Errorf("on record: %+v %v", shown, err)
	}
	if n := w.hosts.executed(); n != 0 || w.calls.Open() != 0 {
		t.Errorf("%d requests were sent, %d calls are open", n, w.calls.Open())
	}
	if n := w.said.with("a fault inside", string(res.CallID), "fault_test.go"); n != 1 {
		t.Errorf("the log tells of it in %d lines", n)
	}
}

// What judges a call's end may fail at what came from its host: the end is recorded all the same.
func TestAFaultInTheJudgingOfACall(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	who, err := w.tokens.Token(w.pat("p", false, everyAgent, everyTool))
	if err != nil {
		t.Fatal(err)
	}
	w.hosts.stream = func(_ context.Context, req *protocol.Request, _ mux.Exchange) *protocol.Response {
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Error: protocol.Errorf(protocol.CodeToolFailed, "no")}
	}
	res, err := w.calls.Call(t.Context(), who, dispatch.Request{
		Tool: "fs_upload", Agent: jsontext.Value(`"web-01"`), Args: jsontext.Value(`{"path":"/x","size":1}`), Edge: "rest", Body: strings.NewReader("x"), BodySize: 1,
		Check: func(jsontext.Value, *fleet.Error) *fleet.Error { panic("boom") },
	})
	if err != nil || res.State != fleet.OutcomeUnknown || res.Err == nil || res.Err.Reason != "server_fault" {
		t.Fatalf("%v %+v %v", res.State, res.Err, err)
	}
	shown, err := w.calls.Result(t.Context(), who, res.CallID, 0)
	if err != nil || shown.State != res.State || shown.Err == nil || *shown.Err != *res.Err {
		t.Errorf("on record: %+v %v", shown, err)
	}
}

// fickle is a context that panics when it's asked for its end, or its error, at one place.
type fickle struct {
	context.Context
	within, not string
	after       <-chan struct{} // not before; nil: at once
}

func (c fickle) fail() {
	if s := string(debug.Stack()); strings.Contains(s, c.within) && (c.not == "" || !strings.Contains(s, c.not)) {
		if c.after != nil {
			<-c.after
		}
		panic("boom")
	}
}

// Done implements context.Context.
func (c fickle) Done() <-chan struct{} { c.fail(); return c.Context.Done() }

// Err implements context.Context.
func (c fickle) Err() error { c.fail(); return c.Context.Err() }

// A fault while a call's intent is recorded ends that call as one that wasn't started: on record
// where the intent came there all the same, else as a refusal. Nothing is held for it.
func TestAFaultAtTheRecordOfAnIntent(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	who, err := w.tokens.Token(w.pat("p", false, everyAgent, everyTool))
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context) (dispatch.Result, error) {
		return w.calls.Call(ctx, who, dispatch.Request{Tool: "shell_exec", Agent: jsontext.Value(`"web-01"`), Args: jsontext.Value(`{"command":"true"}`), Edge: "rest", Key: "k"})
	}
	for name, ctx := range map[string]fickle{
		"before it's on its way": {t.Context(), ".(*DB).enqueue(", "", nil},
		"when it's on its way":   {t.Context(), ".(*DB).submit(", ".(*DB).enqueue(", nil},
	} {
		res, err := call(ctx)
		if err != nil || res.State != fleet.NotStarted || res.Err == nil || res.Err.Reason != "server_fault" {
			t.Fatalf("%s: %v %+v %v", name, res.State, res.Err, err)
		}
		shown, err := w.calls.Result(t.Context(), who, res.CallID, 0)
		if ctx.not != "" && (err != nil || shown.State != res.State || shown.Err == nil || *shown.Err != *res.Err) {
			t.Errorf("%s: on record: %+v %v", name, shown, err)
		}
		if ctx.not == "" && fleet.AsError(err).Code != protocol.CodeNotFound {
			t.Errorf("%s: what isn't on record: %+v %v", name, shown, err)
		}
		if n := w.said.with("a fault inside", string(res.CallID), "fault_test.go"); n != 1 {
			t.Errorf("%s: the log tells of it in %d lines", name, n)
		}
	}
	if n := w.hosts.executed(); n != 0 || w.calls.Open() != 0 {
		t.Errorf("%d requests were sent, %d calls are open", n, w.calls.Open())
	}
	if res, err := call(t.Context()); err != nil || res.State != fleet.Succeeded || res.Joined {
		t.Errorf("the same call again: %+v %v", res, err)
	}
}

// A fault in who waits for a call with a file ends the call, as if its client had gone, and
// leaves nothing of it in use.
func TestAFaultInWhoWaitsForAFile(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	who, err := w.tokens.Token(w.pat("p", false, everyAgent, everyTool))
	if err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	began := make(chan struct{})
	w.hosts.stream = func(ctx context.Context, req *protocol.Request, _ mux.Exchange) *protocol.Response {
		close(began)
		<-ctx.Done()
		over.Store(true)
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Error: protocol.Errorf(protocol.CodeCancelled, "ended")}
	}
	var id fleet.CallID
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the fault is nobody's")
			}
			if !over.Load() {
				t.Error("its body may still be read")
			}
		}()
		_, _ = w.calls.Call(fickle{t.Context(), ".(*Dispatcher).await(", "", began}, who, dispatch.Request{
			Tool: "fs_upload", Agent: jsontext.Value(`"web-01"`), Args: jsontext.Value(`{"path":"/x","size":1}`), Edge: "rest", Body: strings.NewReader("x"), BodySize: 1,
			Progress: func(u dispatch.Update) { id = u.CallID },
		})
	}()
	res, err := w.calls.Result(t.Context(), who, id, 20*time.Second)
	if err != nil || res.State != fleet.Cancelled || w.calls.Open() != 0 {
		t.Errorf("%+v %v, %d calls are open", res, err, w.calls.Open())
	}
}
