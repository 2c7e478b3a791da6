package run

import (
	"testing"
	"time"
)

// What may have lain there while this process was stopped counts from before that; what came
// over a later connection doesn't.
func TestWhatMayHaveLainThere(t *testing.T) {
	now := time.Hour
	a := &awake{now: func() time.Duration { return now }}
	pass := func(d time.Duration) { // awake
		for ; d > 0; d -= lookEvery {
			now += min(d, lookEvery)
			a.look()
		}
	}
	lain := func(what string, least, most time.Duration) {
		t.Helper()
		if got := a.lain(); got < least || got > most {
			t.Errorf("%s: %s, want %s to %s", what, got, least, most)
		}
	}
	lain("unwatched", 0, 0)
	a.connect()
	now += 10 * time.Second
	lain("stopped before the first look", 10*time.Second, 10*time.Second)
	a.look()
	lain("noticed", 10*time.Second, 10*time.Second)
	pass(settleFor + time.Second)
	pass(time.Minute)
	lain("awake", 0, lookEvery)
	now += 10 * time.Second
	lain("stopped, and not noticed yet", 10*time.Second, 10*time.Second+lookEvery)
	a.look()
	lain("noticed", 10*time.Second, 10*time.Second+lookEvery)
	pass(time.Second)
	now += 20 * time.Second
	lain("stopped again, and not noticed yet", 31*time.Second, 31*time.Second+lookEvery)
	a.look()
	lain("noticed again", 31*time.Second, 31*time.Second+lookEvery)
	a.connect()
	lain("over a new connection", 0, 0)
	pass(settleFor + time.Second)
	lain("awake again", 0, lookEvery)
	now += 3 * time.Second
	lain("stopped later", 3*time.Second, 3*time.Second+lookEvery)
}
