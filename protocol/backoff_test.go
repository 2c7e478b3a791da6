package protocol_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
)

// most and least are the ends of what chance can give.
func most(n int64) int64 { return n - 1 }
func least(int64) int64  { return 0 }

func TestBackoffGrowsToItsCeiling(t *testing.T) {
	var low, high protocol.Backoff
	for i, want := range []time.Duration{500, 1000, 2000, 4000, 8000, 10_000, 12_500, 15_625} {
		want *= time.Millisecond
		if got := high.Next(protocol.Ended{}, most); got != want {
			t.Errorf("attempt %d: at most %s, want %s", i, got, want)
		}
		if i == 0 {
			want = 0
		}
		if got := low.Next(protocol.Ended{}, least); got != want/2 {
			t.Errorf("attempt %d: at least %s, want %s", i, got, want/2)
		}
	}
	for range 10 {
		high.Next(protocol.Ended{}, most)
	}
	for name, c := range map[string]struct {
		end       protocol.Ended
		low, high time.Duration
	}{
		"a failed attempt":             {protocol.Ended{}, 30 * time.Second, time.Minute},
		"a short connection":           {protocol.Ended{Up: 9 * time.Second}, 30 * time.Second, time.Minute},
		"a long one with a goodbye":    {protocol.Ended{Up: time.Minute, Told: true}, 0, 500 * time.Millisecond},
		"a long one without":           {protocol.Ended{Up: time.Minute}, 0, 8 * time.Second},
		"a host that slept":            {protocol.Ended{Up: time.Minute, Woke: true}, 0, time.Second},
		"a host that slept in between": {protocol.Ended{Woke: true}, 0, time.Second},
	} {
		one, other := high, high
		if got := one.Next(c.end, least); got != c.low {
			t.Errorf("after %s: at least %s, want %s", name, got, c.low)
		}
		if got := other.Next(c.end, most); got != c.high {
			t.Errorf("after %s: at most %s, want %s", name, got, c.high)
		}
	}
}

func TestBackoffObeysTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		asked, low, high time.Duration
	}{
		"an hour":  {time.Hour, time.Hour, time.Hour + 15*time.Minute},
		"absurd":   {1 << 60, protocol.MaxAsked, protocol.MaxAsked + 6*time.Hour},
		"negative": {-5, 0, 500 * time.Millisecond},
		"a second": {time.Second, time.Second, 2 * time.Second},
	} {
		var low, high protocol.Backoff
		if got := low.Next(protocol.Ended{Asked: c.asked}, least); got != c.low {
			t.Errorf("%s: at least %s, want %s", name, got, c.low)
		}
		if got := high.Next(protocol.Ended{Asked: c.asked}, most); got != c.high {
			t.Errorf("%s: at most %s, want %s", name, got, c.high)
		}
	}
}

// Ten thousand agents whose server is killed and is there again after a while, however long
// that takes: no second has three times the mean of the attempts that reach it, none of them
// is kept waiting for long, and one alone is back within ten seconds when the server is.
func TestBackoffOfAFleet(t *testing.T) {
	const agents, second = 10_000, float64(time.Second)
	for _, away := range []time.Duration{0, 300 * time.Millisecond, 2 * time.Second, 5 * time.Second, 20 * time.Second, time.Minute} {
		r := rand.New(rand.NewPCG(1, uint64(away)))
		var back []time.Duration
		for range agents {
			var b protocol.Backoff
			at := b.Next(protocol.Ended{Up: time.Hour}, r.Int64N)
			for at < away { // refused: nobody listens
				at += b.Next(protocol.Ended{}, r.Int64N)
			}
			back = append(back, at-away)
		}
		var last time.Duration
		for _, d := range back {
			last = max(last, d)
		}
		perSecond := make([]int, int(last.Seconds())+1)
		for _, d := range back {
			perSecond[int(d.Seconds())]++
		}
		peak := 0
		for _, n := range perSecond {
			peak = max(peak, n)
		}
		mean := agents / max(1, float64(last)/second)
		if ratio := float64(peak) / mean; ratio >= 3 {
			t.Errorf("away for %s: a peak of %d a second, %.1f times the mean", away, peak, ratio)
		}
		if last > 60*time.Second || away < 5*time.Second && last > 10*time.Second {
			t.Errorf("away for %s: the last is back after %s", away, last)
		}
	}
}
