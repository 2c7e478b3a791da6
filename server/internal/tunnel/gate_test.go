package tunnel

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A silent connection gives way when somebody needs its place, the oldest first, and not
// before it had time to speak; one whose turn it isn't never does.
func TestGateShedsTheSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2)
		enter := func() (context.Context, *ticket) {
			t.Helper()
			ctx, place, ok := g.enter(t.Context(), "127.0.0.1:1000")
			if !ok {
				t.Fatal("no place")
			}
			return ctx, place
		}
		turnedAway := func() {
			t.Helper()
			if _, _, ok := g.enter(t.Context(), "127.0.0.1:1000"); ok {
				t.Fatal("let in")
			}
		}
		first, a := enter()
		a.waiting(true)
		time.Sleep(time.Second)
		second, b := enter()
		b.waiting(true)
		turnedAway()
		time.Sleep(spare - time.Second)
		third, c := enter()
		if !errors.Is(context.Cause(first), errShed) || second.Err() != nil {
			t.Errorf("the first ended with %v, the second with %v", context.Cause(first), context.Cause(second))
		}
		a.leave() // as its goroutine does; the place is another's by now
		turnedAway()
		b.waiting(false) // it has spoken
		time.Sleep(time.Minute)
		turnedAway()
		c.leave()
		enter()
		if second.Err() != nil || !errors.Is(context.Cause(third), context.Canceled) {
			t.Errorf("the second ended with %v, the third with %v", context.Cause(second), context.Cause(third))
		}
	})
}

// One address has a quarter of the places, unless it's this machine's own: proxies run there.
func TestGateSharesPlaces(t *testing.T) {
	g := newGate(8)
	count := func(remote string) (n int) {
		for {
			_, place, ok := g.enter(t.Context(), remote)
			if !ok {
				return n
			}
			defer place.leave()
			n++
		}
	}
	for _, c := range []struct {
		remote string
		want   int
	}{{"192.0.2.1:7", 2}, {"[::ffff:192.0.2.1]:8", 2}, {"[2001:db8::1]:9", 2}, {"127.0.0.1:7", 8}, {"[::1]:7", 8}} {
		if got := count(c.remote); got != c.want {
			t.Errorf("%s has %d places, want %d", c.remote, got, c.want)
		}
	}
	if len(g.in) != 0 || len(g.byAddr) != 0 {
		t.Errorf("%d places and %d addresses are left", len(g.in), len(g.byAddr))
	}
}

// The agents of a server that stops come back at an even rate, few of them within seconds.
func TestComeBackIsSpread(t *testing.T) {
	for _, c := range []struct {
		agents  int
		perSec  int
		longest time.Duration
	}{{1, 1, 5 * time.Second}, {500, 2 * 130, 6 * time.Second}, {10_000, 2 * backRate, 27 * time.Second}} {
		perSecond := map[int]int{}
		for i := range c.agents {
			d := comeBack(i, c.agents)
			if d < time.Second || d > c.longest {
				t.Fatalf("agent %d of %d comes back after %s", i, c.agents, d)
			}
			perSecond[int(d/time.Second)]++
		}
		for at, n := range perSecond {
			if n > c.perSec {
				t.Errorf("%d of %d come back in second %d", n, c.agents, at)
			}
		}
	}
}
