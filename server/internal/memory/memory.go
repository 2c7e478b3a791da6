// Package memory chooses how a server's garbage collector works.
package memory

import (
	"bytes"
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"time"
)

// How much garbage a server lets lie before it collects, and when it gives memory back.
// Calls make a lot of garbage and little of it lives, so collecting rarely makes them fast;
// a server that only holds idle agents should hold no more than they need.
const (
	garbage    = 64 << 20 // bytes, about, unless more than that lives
	mostGOGC   = 400
	leastGOGC  = 100
	tuneEvery  = 5 * time.Second
	idleTicks  = 4        // so many in a row with less than idleAllocs make a server idle
	idleAllocs = 5 << 20  // bytes, or idlePart of what lives: every agent's keep-alive makes some
	idlePart   = 16       // the sixteenth part
	worthwhile = 16 << 20 // bytes to give back
	memoryPart = 0.7      // of the machine's or the container's memory: the soft limit
)

// Tune sets up the garbage collector of a server until ctx ends. What GOGC or
// GOMEMLIMIT say in the environment is left as it is.
func Tune(ctx context.Context, getenv func(string) string) {
	if total := machineMemory(); total > 0 && getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(float64(total) * memoryPart))
	}
	if getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(mostGOGC)
	go func() {
		tick := time.NewTicker(tuneEvery)
		defer tick.Stop()
		t := tuner{gogc: mostGOGC}
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			set, release := t.look(readHeap())
			if set > 0 {
				debug.SetGCPercent(set)
			}
			if release {
				debug.FreeOSMemory()
			}
		}
	}()
}

// heap is what the runtime says of its memory, in bytes.
type heap struct {
	live   uint64 // after the last collection
	lying  uint64 // garbage and free memory that the system doesn't have back
	allocs uint64 // since the start
}

func readHeap() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	for i := range s {
		if s[i].Value.Kind() != metrics.KindUint64 { // a runtime that has no such metric
			return heap{}
		}
	}
	live, objects := s[0].Value.Uint64(), s[2].Value.Uint64()
	return heap{live: live, allocs: s[1].Value.Uint64(), lying: objects - min(objects, live) + s[3].Value.Uint64()}
}

// tuner remembers what it needs from one look to the next.
type tuner struct {
	gogc   int
	allocs uint64
	quiet  int // ticks
}

// look decides about a new GOGC, 0 for none, and whether to collect now and give memory
// back.
func (t *tuner) look(h heap) (set int, release bool) {
	// Setting it stops the world for a moment: only for a real change.
	if want := gogc(h.live); want*5 < t.gogc*4 || want*4 > t.gogc*5 {
		t.gogc, set = want, want
	}
	t.quiet++
	if h.allocs-t.allocs > max(idleAllocs, h.live/idlePart) {
		t.quiet = 0
	}
	t.allocs = h.allocs
	if t.quiet >= idleTicks && h.lying > worthwhile {
		t.quiet, release = 0, true
	}
	return set, release
}

// gogc is the GOGC that lets about as much garbage lie as the constant says, over so much
// that lives.
func gogc(live uint64) int {
	return int(min(max(garbage*100/max(live, 1), leastGOGC), mostGOGC))
}

// machineMemory is what this process may use at most, in bytes: the machine's memory, or
// its container's limit. 0 where that can't be told.
func machineMemory() uint64 {
	least := uint64(0)
	lower := func(n uint64, err error) {
		if err == nil && n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if f := bytes.Fields(b); len(f) > 1 && string(f[0]) == "MemTotal:" {
			kb, err := strconv.ParseUint(string(f[1]), 10, 64)
			lower(kb<<10, err)
		}
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if b, err := os.ReadFile(file); err == nil {
			lower(strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)) // "max" is no number
		}
	}
	return least
}
