package fleet

import (
	"fmt"
	"testing"
)

// However long a copy is started again and again in the first one's absence, the first is
// known when it's back, if it had held the identity for longer than each of them, and after
// a long life with many restarts too. What's remembered has a bound.
func TestFirstOutlivesACopyThatCrashes(t *testing.T) {
	const day = 24 * 60 * 60
	s, now, last := &Standing{}, int64(1_800_000_000), int64(0)
	as := func(instance string, stored int64) Verdict {
		v := s.Judge(Claim{Instance: instance, LastEpoch: stored, At: now}, 1)
		if v == Admitted || v == Reclaimed {
			s.Acked, last = s.Epoch, s.Epoch
		}
		return v
	}
	for i := range 200 { // restarted each night
		as(fmt.Sprint("night ", i), last)
		now += day
	}
	as("first", last)
	o := last
	now += 3600
	for i := range 1000 { // a container that crashes
		if v := as(fmt.Sprint("copy ", i), last); v != Admitted {
			t.Fatalf("start %d of the copy is %s", i, v)
		}
		now += 300
	}
	if n := len(s.Earlier); n > 4<<10 {
		t.Errorf("%d bytes are remembered", n)
	}
	if v := as("night 3", o); v != Forked {
		t.Errorf("a process of long ago is %s", v)
	}
	if v := as("first", o); v != Reclaimed {
		t.Fatalf("the first is %s", v)
	}
	if v := as("copy 999", s.Epoch-2); v != Forked {
		t.Errorf("the copy is %s after it", v)
	}
}
