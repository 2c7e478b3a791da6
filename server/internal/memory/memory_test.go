package memory

import "testing"

func TestGOGC(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 128 << 20: 100, 1 << 40: 100} {
		if got := gogc(live); got != want {
			t.Errorf("%d MiB live: GOGC %d, want %d", live>>20, got, want)
		}
	}
}

func TestTuner(t *testing.T) {
	const mb = 1 << 20
	tune := tuner{gogc: mostGOGC}
	allocs := uint64(0)
	look := func(more uint64, live, lying uint64) (int, bool) {
		allocs += more
		return tune.look(heap{live: live, lying: lying, allocs: allocs})
	}
	if set, _ := look(100*mb, 17*mb, 0); set != 0 {
		t.Errorf("a small change sets GOGC to %d", set)
	}
	if set, _ := look(100*mb, 128*mb, 0); set != leastGOGC {
		t.Errorf("much that lives sets GOGC to %d", set)
	}
	if set, _ := look(100*mb, 16*mb, 0); set != mostGOGC {
		t.Errorf("little that lives sets GOGC to %d", set)
	}
	released := 0
	for i := range 2 * idleTicks {
		if _, release := look(mb, 16*mb, 100*mb); release {
			if released++; i < idleTicks-1 {
				t.Errorf("memory is given back after %d ticks", i+1)
			}
		}
	}
	if released != 2 {
		t.Errorf("memory was given back %d times, want 2", released)
	}
	for range 2 * idleTicks {
		if _, release := look(mb, 16*mb, mb); release {
			t.Error("nothing to give back, and yet it's done")
		}
		if _, release := look(100*mb, 16*mb, 100*mb); release {
			t.Error("a busy server gives memory back")
		}
	}
	released = 0
	for range idleTicks {
		if _, release := look(7*mb, 160*mb, 100*mb); release {
			released++
		}
	}
	if released != 1 {
		t.Error("a server whose many agents only show signs of life keeps what it doesn't need")
	}
}

func TestReadHeap(t *testing.T) {
	if h := readHeap(); h.allocs == 0 || h.live+h.lying == 0 {
		t.Errorf("the runtime tells nothing: %+v", h)
	}
}
