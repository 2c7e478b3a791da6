package spool_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/agent/internal/spool"
	"github.com/drover-fleet/drover/protocol"
)

func ann() protocol.Caller { return protocol.Caller{Principal: "pat:ann"} }

func open(t *testing.T, dir string, lim spool.Limits) *spool.Spool {
	t.Helper()
	s, err := spool.Open(dir, lim, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// keep keeps an output as that of an ended call.
func keep(s *spool.Spool, id, stdout string) (kept, whole bool) {
	c := s.Begin(id, ann())
	c.Write(spool.Stdout, []byte(stdout))
	return c.End()
}

// read is what is kept of a stream; "-" when nothing is.
func read(t *testing.T, s *spool.Spool, id string, name spool.Stream) (string, spool.Kept) {
	t.Helper()
	f, kept, err := s.Open(id, "pat:ann", name)
	if errors.Is(err, spool.ErrNotKept) {
		return "-", kept
	}
	if err != nil {
		t.Fatal(err)
	}
	if f == nil {
		return "", kept
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, kept.Size))
	if err != nil {
		t.Fatal(err)
	}
	return string(b), kept
}

func TestKeptForTheCallerAndOverARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "output")
	s := open(t, dir, spool.Limits{})
	c := s.Begin("call-1", ann())
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("before the first byte there's %v", list)
	}
	c.Write(spool.Stdout, []byte("out \xff"))
	c.Write(spool.Stderr, []byte("err"))
	if got, kept := read(t, s, "call-1", spool.Stdout); got != "out \xff" || kept.Ended || !kept.Whole {
		t.Errorf("while it runs: %q %+v", got, kept)
	}
	if kept, whole := c.End(); !kept || !whole {
		t.Errorf("kept %v, whole %v", kept, whole)
	}
	c.Write(spool.Stdout, []byte("late"))
	for range 2 {
		if got, kept := read(t, s, "call-1", spool.Stdout); got != "out \xff" || !kept.Ended || !kept.Whole {
			t.Errorf("got %q %+v", got, kept)
		}
		if got, _ := read(t, s, "call-1", spool.Stderr); got != "err" {
			t.Errorf("got %q", got)
		}
		for _, who := range []string{"pat:bob", ""} {
			if f, _, err := s.Open("call-1", who, spool.Stdout); f != nil || !errors.Is(err, spool.ErrNotKept) {
				t.Errorf("for %q: %v, %v", who, f, err)
			}
		}
		s.Close()
		s = open(t, dir, spool.Limits{})
	}
	if runtime.GOOS != "windows" {
		for path, want := range map[string]fs.FileMode{"": 0o700, "call-1": 0o700, "call-1/stdout": 0o600, "call-1/stderr": 0o600, "call-1/meta.json": 0o600} {
			if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != want {
				t.Errorf("%q: %v %v", path, info.Mode(), err)
			}
		}
	}
	if kept, _ := keep(s, "empty", ""); kept {
		t.Error("nothing was kept as something")
	}
}

func TestQuotas(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, spool.Limits{Total: 3000, PerCall: 1000})
	c := s.Begin("big", ann())
	for range 30 {
		c.Write(spool.Stdout, bytes.Repeat([]byte("x"), 100))
	}
	c.Write(spool.Stderr, []byte("the error"))
	if kept, whole := c.End(); !kept || whole {
		t.Errorf("over its quota: kept %v, whole %v", kept, whole)
	}
	got, kept := read(t, s, "big", spool.Stdout)
	if len(got) < 700 || len(got) > 1000 || kept.Whole {
		t.Errorf("%d bytes of a call, %+v", len(got), kept)
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if kept, whole := keep(s, id, strings.Repeat(id, 750)); !kept || !whole {
			t.Errorf("%s: kept %v, whole %v", id, kept, whole)
		}
	}
	for id, want := range map[string]int{"big": 1, "a": 750, "b": 750, "c": 750, "d": 750} {
		if got, _ := read(t, s, id, spool.Stdout); len(got) != want {
			t.Errorf("of %s there are %d bytes", id, len(got))
		}
	}
	// Running calls aren't taken from.
	var running []*spool.Call
	for i, id := range []string{"r1", "r2", "r3", "r4", "r5"} {
		c := s.Begin(id, []protocol.Caller{ann(), {Principal: "pat:bob"}}[i%2])
		c.Write(spool.Stdout, bytes.Repeat([]byte("r"), 700))
		running = append(running, c)
	}
	for i, c := range running {
		if kept, whole := c.End(); kept != (i < 4) || whole != (i < 4) {
			t.Errorf("r%d: kept %v, whole %v", i+1, kept, whole)
		}
	}
	// What is there when it's opened counts, too.
	open(t, dir, spool.Limits{Total: 800})
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("%d calls are left of 800 bytes", len(list))
	}
}

// Whoever floods a spool takes from their own first: what others have stays, and there's room
// for them also while all the flood's calls run.
func TestAFloodLeavesWhatOthersHave(t *testing.T) {
	s := open(t, t.TempDir(), spool.Limits{Total: 4000, PerCall: 1000})
	for _, id := range []string{"bobs1", "bobs2"} {
		c := s.Begin(id, protocol.Caller{Principal: "pat:bob"})
		c.Write(spool.Stdout, bytes.Repeat([]byte("b"), 700))
		c.End()
	}
	for i := range 20 {
		if kept, whole := keep(s, fmt.Sprintf("flood%d", i), strings.Repeat("a", 700)); !kept || !whole {
			t.Errorf("flood %d: kept %v, whole %v", i, kept, whole)
		}
	}
	bobs := func(id string) bool {
		f, _, err := s.Open(id, "pat:bob", spool.Stdout)
		if f != nil {
			_ = f.Close()
		}
		return err == nil
	}
	if !bobs("bobs1") || !bobs("bobs2") {
		t.Error("another's output was evicted by a flood")
	}
	// Calls that run can't be taken from: they get half at most.
	for i := range 6 {
		c := s.Begin(fmt.Sprintf("running%d", i), ann())
		c.Write(spool.Stdout, bytes.Repeat([]byte("r"), 700))
		defer c.End()
	}
	c := s.Begin("bobs3", protocol.Caller{Principal: "pat:bob"})
	c.Write(spool.Stdout, bytes.Repeat([]byte("b"), 500))
	if kept, whole := c.End(); !kept || !whole || !bobs("bobs1") || !bobs("bobs2") {
		t.Errorf("beside a running flood: kept %v, whole %v, and the earlier ones %v %v", kept, whole, bobs("bobs1"), bobs("bobs2"))
	}
}

// The error output of a command whose standard output filled the quota is kept.
func TestOneStreamLeavesRoomForTheOther(t *testing.T) {
	s := open(t, t.TempDir(), spool.Limits{PerCall: 1000})
	c := s.Begin("big", ann())
	c.Write(spool.Stderr, bytes.Repeat([]byte("e"), 200))
	c.Write(spool.Stdout, bytes.Repeat([]byte("o"), 700))
	c.Write(spool.Stderr, []byte("the end"))
	if kept, whole := c.End(); !kept || !whole {
		t.Errorf("kept %v, whole %v", kept, whole)
	}
	c = s.Begin("flood", ann())
	c.Write(spool.Stdout, bytes.Repeat([]byte("o"), 5000))
	c.End()
	if got, _ := read(t, s, "flood", spool.Stdout); len(got) != 750 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestTheDiskIsNotFilled(t *testing.T) {
	var mu sync.Mutex
	free := uint64(300 << 20)
	lim := spool.Limits{Space: func(string) (uint64, uint64, error) {
		mu.Lock()
		defer mu.Unlock()
		return free, 1 << 30, nil
	}}
	s := open(t, t.TempDir(), lim)
	c := s.Begin("one", ann())
	piece := make([]byte, 1<<20)
	for range 20 {
		c.Write(spool.Stdout, piece)
		mu.Lock()
		free -= 10 << 20
		mu.Unlock()
	}
	if kept, whole := c.End(); !kept || whole {
		t.Errorf("kept %v, whole %v", kept, whole)
	}
	if got, _ := read(t, s, "one", spool.Stdout); len(got) > 9<<20 || len(got) < 5<<20 {
		t.Errorf("%d bytes were written", len(got))
	}
	if kept, _ := keep(s, "two", "x"); kept {
		t.Error("kept on a full disk")
	}
	// Under 5%, over MinFree.
	s = open(t, t.TempDir(), spool.Limits{MinFree: 1 << 20, Space: func(string) (uint64, uint64, error) { return 50 << 20, 1 << 30, nil }})
	if kept, _ := keep(s, "three", "x"); kept {
		t.Error("kept with less than 5% free")
	}
}

func TestOldAndForeignThingsGo(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, spool.Limits{Age: time.Hour})
	keep(s, "new", "x")
	for id, meta := range map[string]string{
		"old":     `{"principal":"pat:ann","at":"` + time.Now().Add(-2*time.Hour).UTC().Format(time.RFC3339) + `","ended":true,"whole":true}`,
		"cut-off": `{"principal":"pat:ann","at":"` + time.Now().UTC().Format(time.RFC3339) + `","ended":false,"whole":true}`,
		"junk":    `{`, "no id!": `{}`,
	} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, id), 0o700), os.WriteFile(filepath.Join(dir, id, "meta.json"), []byte(meta), 0o600),
			os.WriteFile(filepath.Join(dir, id, "stdout"), []byte("text"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(t, dir, spool.Limits{Age: time.Hour})
	for id, want := range map[string]string{"new": "x", "old": "-", "cut-off": "text", "junk": "-", "no id!": "-", "../new": "-", "": "-"} {
		if got, _ := read(t, s, id, spool.Stdout); got != want {
			t.Errorf("%q: got %q", id, got)
		}
	}
	if _, kept := read(t, s, "cut-off", spool.Stdout); kept.Whole || !kept.Ended {
		t.Errorf("of a call whose agent died: %+v", kept)
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("left: %v", list)
	}
}

func TestASpoolThatIsNotThereKeepsNothing(t *testing.T) {
	var s *spool.Spool
	c := s.Begin("x", ann())
	c.Write(spool.Stdout, []byte("x"))
	if kept, whole := c.End(); kept || whole {
		t.Error("kept")
	}
	if _, _, err := s.Open("x", "pat:ann", spool.Stdout); !errors.Is(err, spool.ErrNotKept) {
		t.Error(err)
	}
	s.Close()
	if kept, _ := keep(open(t, t.TempDir(), spool.Limits{}), "../../x", "x"); kept {
		t.Error("kept outside")
	}
}
