package fault_test

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// run is how schedules are drawn and lived: checks times worlds of them.
type run struct {
	checks  int
	worlds  int // at a time: they mostly wait
	actions []string
	begin   func(c *collector) *world
}

// oneServer is a server and agents in this process: 60 schedules take half a minute.
func oneServer(checks int) run {
	return run{checks: checks, worlds: 20, begin: newWorld, actions: []string{
		"call", "call", "call", "call", "call again", "cancel", "poll", "cut", "cut", "half-open", "reconnect",
		"server restart", "agent restart", "second connect", "re-key", "remove",
	}}
}

// TestModel runs random schedules of what happens to a fleet and its calls, and holds each
// to the promises of docs/guarantees.md: no effect on another agent than named, none twice,
// one intent and one outcome each, an answered success was executed, what is said not to have
// started was not, and what was cancelled is dead.
func TestModel(t *testing.T) { oneServer(3).check(t) }

// check runs the schedules and judges them.
func (r run) check(t *testing.T) {
	// Two runs of a schedule differ in their timing, so that a smaller one proves nothing.
	for name, value := range map[string]string{"checks": fmt.Sprint(r.checks), "shrinktime": "0s", "nofailfile": "true"} {
		f := flag.Lookup("rapid." + name)
		old := f.Value.String()
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(old) })
	}
	draws := 0
	var ends tally
	rapid.Check(t, func(rt *rapid.T) {
		plans := make([][]step, r.worlds)
		for i := range plans {
			plans[i] = rapid.SliceOfN(steps(r.actions), 6, 16).Draw(rt, fmt.Sprint("schedule ", i))
		}
		draws++
		var worlds sync.WaitGroup
		said := make([][]string, r.worlds)
		for i, plan := range plans {
			worlds.Go(func() { said[i] = r.live(t, fmt.Sprintf("%d-%d", draws, i), plan, &ends) })
		}
		worlds.Wait()
		for i, s := range said {
			if len(s) > 0 {
				rt.Errorf("schedule %d broke a promise (the seed below repeats the schedule, with -rapid.seed; the timing varies):\n%s\n  %s",
					i, describe(plans[i]), strings.Join(s, "\n  "))
			}
		}
	})
	t.Logf("%d schedules; the calls ended as %v", draws*r.worlds, ends.by)
	for _, state := range []string{succeeded, notStarted} {
		if ends.by[state] == 0 && !t.Failed() {
			t.Errorf("no call ended as %s: the schedules prove little", state)
		}
	}
}

// tally counts how calls ended.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

func (t *tally) add(state string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[string]int{}
	}
	t.by[state]++
}

// step is one thing that happens.
type step struct {
	do   string
	host int // which of the two
	at   int // which of the replicas
	slow bool
}

// steps draws one: mostly calls, since nothing is proved without.
func steps(actions []string) *rapid.Generator[step] {
	return rapid.Custom(func(rt *rapid.T) step {
		return step{
			do: rapid.SampledFrom(actions).Draw(rt, "do"), host: rapid.IntRange(0, 1).Draw(rt, "host"),
			at: rapid.IntRange(0, 1).Draw(rt, "at"), slow: rapid.Bool().Draw(rt, "slow"),
		}
	})
}

func describe(plan []step) string {
	var b strings.Builder
	for _, s := range plan {
		fmt.Fprintf(&b, "  %s host-%d at=%d slow=%t\n", s.do, s.host, s.at, s.slow)
	}
	return b.String()
}

// live runs one schedule in a world of its own.
func (r run) live(t *testing.T, name string, plan []step, ends *tally) []string {
	c := newCollector(t, name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := r.begin(c)
		for _, s := range plan {
			w.step(s)
			w.always()
		}
		w.rest()
		for _, call := range w.calls {
			if res := call.answered(); res != nil {
				ends.add(res.State)
			} else {
				ends.add("refused")
			}
		}
	}()
	<-done
	return c.end()
}
