//go:build unix

package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// kept is what the record has of one call.
type kept struct {
	intents, outcomes int
	state             string
}

// record waits until every call has an outcome, and returns what is recorded.
func (r *rig) record(t *testing.T) map[string]kept {
	t.Helper()
	var calls map[string]kept
	var open []string
	defer func() {
		for _, id := range open[:min(len(open), 10)] { // the wait below has failed
			_, body := r.REST(r.Admin).Do("GET", "/api/v1/calls/"+id, "")
			t.Logf("without an outcome: %s", body)
		}
	}()
	harness.Eventually(t, 3*time.Minute, "an outcome of every call", func() bool {
		calls, open = map[string]kept{}, nil
		for _, row := range r.AllRecords() {
			k := calls[row.CallID]
			switch row.Kind {
			case "intent":
				k.intents++
			case "outcome":
				k.outcomes++
				k.state = row.Body.State
			default:
				continue
			}
			calls[row.CallID] = k
		}
		for id, k := range calls {
			if k.outcomes == 0 {
				open = append(open, id)
			}
		}
		return len(open) == 0
	})
	return calls
}

// refusals are the codes that say that nothing ran.
var refusals = []string{"offline", "unavailable", "not_started"}

// verify holds what clients were told and what ran on hosts against the record. allowed are
// the codes that a client may have been given.
func (l *load) verify(allowed ...string) {
	l.t.Helper()
	calls := l.r.record(l.t)
	for id, k := range calls {
		if k.intents != 1 || k.outcomes != 1 {
			l.t.Errorf("call %s has %d intents and %d outcomes", id, k.intents, k.outcomes)
		}
	}
	ran, numbers := map[string]bool{}, map[string]bool{}
	for _, e := range l.effects.all(l.t) {
		switch k := calls[e.call]; {
		case e.on != e.meant:
			l.t.Errorf("call %s (%s) ran on %s and was meant for %s", e.call, e.n, e.on, e.meant)
		case ran[e.call], numbers[e.n]:
			l.t.Errorf("call %s (%s) ran twice", e.call, e.n)
		case k.intents == 0:
			l.t.Errorf("call %s (%s) ran and isn't in the record", e.call, e.n)
		case !slices.Contains([]string{"succeeded", "failed", "cancelled", "timed_out", "outcome_unknown"}, k.state):
			l.t.Errorf("call %s (%s) ran and is recorded as %s", e.call, e.n, k.state)
		}
		ran[e.call], numbers[e.n] = true, true
	}
	ends := map[string]int{}
	for _, a := range l.answers {
		ends[a.state+" "+a.code]++
		if a.code != "" && !slices.Contains(allowed, a.code) {
			l.t.Errorf("call %s to %s was answered with %q: %s %.300s", a.n, a.agent, a.code, a.state, a.text)
		}
		if slices.Contains(refusals, a.code) && numbers[a.n] {
			l.t.Errorf("call %s to %s was refused as %s, and ran: %.300s", a.n, a.agent, a.code, a.text)
		}
		if a.call == "" {
			continue
		}
		k, ok := calls[a.call]
		open := a.state == "dispatched" || a.state == "queued" || a.state == ""
		switch {
		case !ok:
			l.t.Errorf("a client was told of call %s, which isn't in the record", a.call)
		case !open && a.state != k.state:
			l.t.Errorf("a client was told that call %s is %s; it's recorded as %s", a.call, a.state, k.state)
		case a.state == "succeeded" && !a.file && !ran[a.call]:
			l.t.Errorf("call %s (%s) succeeded and never ran", a.call, a.n)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(ends)) {
		l.t.Logf("%6d answers: %s", ends[k], k)
	}
	l.t.Logf("%d calls in the record, %d executions, %d files, %d messages of progress", len(calls), len(ran), l.files.Load(), l.progress.Load())
	if ends["succeeded "]*2 < len(l.answers) {
		l.t.Error("too little went well for this to prove much")
	}
}

// recovered waits until a call to every agent succeeds.
func (l *load) recovered(limit time.Duration) {
	l.t.Helper()
	todo := slices.Clone(l.agents)
	rest := l.r.REST(l.r.Admin)
	last := ""
	began := time.Now()
	for time.Since(began) < limit && len(todo) > 0 {
		todo = slices.DeleteFunc(todo, func(agent string) bool {
			n := fmt.Sprintf("n%d", l.next.Add(1))
			in, _ := json.Marshal(map[string]any{"agent_id": agent, "tool": "shell_exec", "args": map[string]any{"command": l.effects.command(agent, n, false)}})
			_, body := rest.Do("POST", "/api/v1/calls", string(in))
			var res harness.CallResult
			_ = json.Unmarshal(body, &res) // nginx' own answers aren't JSON
			last = string(body)
			return res.State == "succeeded"
		})
	}
	if len(todo) > 0 {
		l.t.Errorf("after %s, %d agents can't be called, %s among them: %s", limit, len(todo), todo[0], last)
		return
	}
	l.t.Logf("all %d agents were called within %s", len(l.agents), time.Since(began).Round(100*time.Millisecond))
}
