package restapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// until waits for a condition, at most 20 s.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			w.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// waiting waits until so many requests wait.
func (w *world) waiting(n int64) {
	w.t.Helper()
	w.until("as many wait as should", func() bool { return w.calls.Waits() == n })
}

// TestACallWaitsForAnAgentThatIsExpected: one that may be there in a moment is waited for,
// before anything is on record, until it comes, isn't expected any more, was removed, or the
// caller goes away. Whatever becomes of it, the call runs once or not at all.
func TestACallWaitsForAnAgentThatIsExpected(t *testing.T) {
	const body = `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}`
	for name, c := range map[string]struct {
		more   string
		then   func(w *world, admin string)
		status int
		code   string
		ran    int
	}{
		"it comes": {`}`, func(w *world, _ string) {
			w.hosts.set("web-01", true, false)
			w.calls.AgentElsewhere("web-01", 1)
		}, http.StatusOK, "", 1},
		"it comes, and the call has a key": {`,"idempotency_key":"k"}`, func(w *world, _ string) { w.hosts.set("web-01", true, true) }, http.StatusOK, "", 1},
		"it doesn't":                       {`}`, func(w *world, _ string) { w.hosts.set("web-01", false, false) }, http.StatusServiceUnavailable, "offline", 0},
		"it's removed": {`}`, func(w *world, admin string) {
			if a := w.do("DELETE", "/api/v1/agents/web-01", admin, ""); a.status != http.StatusNoContent {
				w.t.Errorf("remove: %d %s", a.status, a.body)
			}
		}, http.StatusServiceUnavailable, "offline", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.agent("web-01", nil)
			w.hosts.set("web-01", false, true)
			admin := w.pat("a", true, everyAgent, everyTool)
			answer := make(chan answerOf, 1)
			go func() { answer <- w.do("POST", "/api/v1/calls", admin, body+c.more) }()
			w.waiting(1)
			if rows := decode[CallList](t, w.do("GET", "/api/v1/calls", admin, "")); len(rows.Calls) != 0 || len(answer) != 0 {
				t.Errorf("it's on record before there's a way: %+v", rows)
			}
			c.then(w, admin)
			a := <-answer
			if a.status != c.status || a.code() != c.code || w.hosts.executed() != c.ran {
				t.Errorf("HTTP %d %s, and it ran %d times", a.status, a.body, w.hosts.executed())
			}
			w.waiting(0)
		})
	}
}

// TestWhoWaitsForAnExpectedAgent: a caller that goes away stops waiting, and its call doesn't
// run later; of one credential only so many requests wait, others' beside them.
func TestWhoWaitsForAnExpectedAgent(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	w.hosts.set("web-01", false, true)
	ann := fleet.Principal{ID: "pat:ann", Grant: fleet.Grant{Agents: everyAgent, Tools: everyTool}}
	bob := fleet.Principal{ID: "pat:bob", Grant: ann.Grant}
	req := dispatch.Request{Tool: "shell_exec", Agent: jsontext.Value(`"web-01"`), Args: jsontext.Value(`{"command":"id"}`), Edge: "rest"}
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	wait := func(who fleet.Principal) {
		all.Go(func() {
			if res, err := w.calls.Call(ctx, who, req); err == nil {
				t.Errorf("%s: %+v", who.ID, res)
			}
		})
	}
	const most = 1024
	for range most {
		wait(ann)
	}
	w.waiting(most)
	var fe *fleet.Error
	if _, err := w.calls.Call(t.Context(), ann, req); !errors.As(err, &fe) || fe.Code != protocol.CodeOffline {
		t.Errorf("one more: %v", err)
	}
	wait(bob)
	w.waiting(most + 1)
	leave()
	all.Wait()
	w.waiting(0)
	w.hosts.set("web-01", true, false)
	w.calls.AgentElsewhere("web-01", 1)
	if n := w.hosts.executed(); n != 0 {
		t.Errorf("%d calls ran whose callers had gone", n)
	}
}
