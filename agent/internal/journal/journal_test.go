package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/tests/testenv"
)

const name = "calls.journal"

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// idAt is the id of a call made at a millisecond.
func idAt(ms int) journal.ID {
	u := uuid.UUID{6: 0x70, 8: 0x80, 15: 1}
	u[4], u[5], u[3] = byte(ms>>8), byte(ms), byte(ms>>16)
	return journal.IDOf(u.String())
}

func open(t testing.TB, dir string, slots int) *journal.Journal {
	t.Helper()
	return openAt(t, journal.Options{Dir: dir, Slots: slots, HostBoot: "boot 1"})
}

func openAt(t testing.TB, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func start(t testing.TB, j *journal.Journal, id journal.ID) {
	t.Helper()
	if err := j.Start(id, "shell_exec", false); err != nil {
		t.Fatal(err)
	}
}

func done(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestEntriesOutlastTheProcess(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, 8)
	exit := 3
	for i := range 4 {
		start(t, j, idAt(i))
	}
	done(t, j.Process(idAt(0), 4711), j.End(idAt(0), &exit), j.End(idAt(1), nil), j.Withdraw(idAt(2)))
	// The process is killed: nothing is closed.
	j = open(t, dir, 8)
	if j.Aside() != "" {
		t.Errorf("%q set aside", j.Aside())
	}
	want := []journal.Entry{{State: journal.Ended, PID: 4711, Exit: &exit}, {State: journal.Ended}, {State: journal.Withdrawn}, {State: journal.Started}}
	for i, w := range want {
		e, ok := j.Find(idAt(i))
		if !ok || e.State != w.State || e.PID != w.PID || (e.Exit == nil) != (w.Exit == nil) || w.Exit != nil && *e.Exit != *w.Exit || e.Tool != "shell_exec" || e.HostRestarted {
			t.Errorf("entry %d: %+v, %v", i, e, ok)
		}
		if time.Since(e.Began) > time.Minute || e.Ended.IsZero() != (w.State != journal.Ended) {
			t.Errorf("entry %d: began %v, ended %v", i, e.Began, e.Ended)
		}
		if err := j.Start(idAt(i), "shell_exec", false); !errors.Is(err, journal.ErrKnown) {
			t.Errorf("entry %d begins again: %v", i, err)
		}
	}
	if left := j.Open(); len(left) != 1 || left[0] != idAt(3) {
		t.Errorf("open: %v", left)
	}
	done(t, j.Lose(idAt(3), 2))
	j = open(t, dir, 8)
	if e, _ := j.Find(idAt(3)); e.State != journal.Lost || e.Left != 2 || len(j.Open()) != 0 {
		t.Errorf("lost: %+v", e)
	}
}

func TestTheNameTellsTheHostsBoot(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, 8)
	start(t, j, idAt(1))
	again := openAt(t, journal.Options{Dir: dir, Slots: 8, HostBoot: "boot 2"})
	if again.Boot() == j.Boot() || len(again.Boot()) > 128 {
		t.Errorf("the same name after a restart of the host: %s", again.Boot())
	}
	if e, ok := again.Find(idAt(1)); !ok || !e.HostRestarted {
		t.Errorf("%+v", e)
	}
	real := openAt(t, journal.Options{Dir: t.TempDir()})
	if real.Boot() == j.Boot() || len(real.Boot()) > 128 {
		t.Error("two journals have one name")
	}
}

func TestWhatIsOverwrittenRaisesTheFloor(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, 4)
	for i := range 10 {
		start(t, j, idAt(100+i))
		done(t, j.End(idAt(100+i), nil))
		for _, j := range []*journal.Journal{j, open(t, dir, 4)} {
			for k := range 12 {
				_, found := j.Find(idAt(100 + k))
				if wantFound := k <= i && k > i-4; found != wantFound {
					t.Fatalf("after %d: found %d: %v", i, k, found)
				}
				if gone := j.Forgotten(idAt(100 + k)); gone != (k <= i-4) {
					t.Fatalf("after %d: forgotten %d: %v", i, k, gone)
				}
			}
			if j.Forgotten(journal.IDOf("some other id")) {
				t.Fatal("no other id was overwritten")
			}
		}
	}
	// An older id that comes late and is overwritten doesn't lower it, nor does one of another
	// kind touch it.
	start(t, j, idAt(5))
	start(t, j, journal.IDOf("other"))
	done(t, j.End(idAt(5), nil), j.End(journal.IDOf("other"), nil))
	for i := range 6 {
		start(t, j, idAt(200+i))
		done(t, j.End(idAt(200+i), nil))
	}
	j = open(t, dir, 4)
	if !j.Forgotten(idAt(201)) || j.Forgotten(idAt(202)) || !j.Forgotten(journal.IDOf("yet another")) {
		t.Error("the floor is wrong after ids out of order")
	}
}

func TestACallThatRunsIsNotOverwritten(t *testing.T) {
	j := open(t, t.TempDir(), 4)
	start(t, j, idAt(1))
	start(t, j, idAt(2))
	for i := range 20 {
		start(t, j, idAt(10+i))
		done(t, j.End(idAt(10+i), nil))
	}
	for _, id := range []journal.ID{idAt(1), idAt(2)} {
		if e, ok := j.Find(id); !ok || e.State != journal.Started {
			t.Errorf("%+v, %v", e, ok)
		}
	}
	start(t, j, idAt(50))
	start(t, j, idAt(51))
	if err := j.Start(idAt(52), "shell_exec", false); !errors.Is(err, journal.ErrFull) {
		t.Errorf("a call too many: %v", err)
	}
	done(t, j.End(idAt(1), nil))
	start(t, j, idAt(52))
}

// spoil changes bytes of a journal's file.
func spoil(t *testing.T, dir string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedJournalGetsANewName(t *testing.T) {
	for what, c := range map[string]struct {
		change   func([]byte) []byte
		survives bool
	}{
		"torn slot":               {func(b []byte) []byte { copy(b[3*128+60:4*128], make([]byte, 68)); return b }, true},
		"emptied slot's checksum": {func(b []byte) []byte { b[3*128] ^= 1; return b }, true},
		"slot moved":              {func(b []byte) []byte { copy(b[6*128:7*128], b[2*128:3*128]); return b }, true},
		"slot doubled":            {func(b []byte) []byte { copy(b[3*128:4*128], b[2*128:3*128]); return b }, true},
		"cut":                     {func(b []byte) []byte { return b[:len(b)-1] }, false},
		"empty":                   {func(b []byte) []byte { return nil }, false},
		"longer":                  {func(b []byte) []byte { return append(b, 0) }, false},
		"header":                  {func(b []byte) []byte { b[30] ^= 1; return b }, false},
		"foreign":                 {func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) }, false},
		"zeros":                   {func(b []byte) []byte { return make([]byte, len(b)) }, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			j := open(t, dir, 8)
			for i := range 4 {
				start(t, j, idAt(i+1))
				done(t, j.End(idAt(i+1), nil))
			}
			done(t, j.Close())
			spoil(t, dir, c.change)
			var after *journal.Journal
			for range 2 { // the new one is whole
				after = open(t, dir, 8)
				if after.Boot() == j.Boot() {
					t.Error("a damaged journal kept its name: what it lost would count as never begun")
				}
			}
			if _, ok := after.Find(idAt(1)); ok != c.survives {
				t.Errorf("the first entry is there: %v", ok)
			}
			if c.survives && !after.Forgotten(idAt(2)) {
				t.Error("what was lost isn't covered")
			}
			if _, err := os.Stat(filepath.Join(dir, name+".damaged")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnotherAgentsSlotIsNotTaken(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	start(t, open(t, a, 8), idAt(1))
	j := open(t, b, 8)
	foreign, err := os.ReadFile(filepath.Join(a, name))
	if err != nil {
		t.Fatal(err)
	}
	done(t, j.Close())
	spoil(t, b, func(own []byte) []byte { copy(own[128:], foreign[128:]); return own })
	after := open(t, b, 8)
	if _, ok := after.Find(idAt(1)); ok || after.Boot() == j.Boot() {
		t.Errorf("found %v under %s", ok, after.Boot())
	}
}

func TestTheFileNeverGrows(t *testing.T) {
	dir := t.TempDir()
	j := openAt(t, journal.Options{Dir: dir})
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for i := range 2*journal.Slots + 3 {
		id := journal.IDOf(uuid.Must(uuid.NewV7()).String())
		if err := j.Start(id, strings.Repeat("x", 200), i%1000 == 0); err != nil {
			t.Fatal(err)
		}
		done(t, j.End(id, nil))
	}
	if before != (journal.Slots+1)*128 || size() != before {
		t.Errorf("%d bytes, then %d", before, size())
	}
}

func TestOneIDStartsOnceAlsoAtTheSameTime(t *testing.T) {
	j := open(t, t.TempDir(), 64)
	var wg sync.WaitGroup
	won := make(chan int, 400)
	for range 20 {
		wg.Go(func() {
			for i := range 20 {
				if j.Start(idAt(i), "t", false) == nil {
					won <- i
				}
				_ = j.Process(idAt(i), i+1)
				j.Find(idAt(i))
				_ = j.End(idAt(i), nil)
			}
		})
	}
	wg.Wait()
	if len(won) != 20 {
		t.Errorf("%d entries began", len(won))
	}
}

func TestAMemoryJournalPromisesNothingSynced(t *testing.T) {
	j := journal.Memory()
	if err := j.Start(idAt(1), "t", true); !errors.Is(err, journal.ErrVolatile) {
		t.Errorf("got %v", err)
	}
	start(t, j, idAt(1))
	done(t, j.End(idAt(1), nil), j.Close())
}

func TestIDsOfCallsHaveTheirOrder(t *testing.T) {
	older, newer := uuid.Must(uuid.NewV7()).String(), ""
	for newer = older; newer[:8+1+4] == older[:8+1+4]; newer = uuid.Must(uuid.NewV7()).String() {
	}
	var f journal.Floor
	f.Raise(journal.IDOf(older))
	for id, covered := range map[string]bool{older: true, strings.ToUpper(older): true, newer: false, "x": false, uuid.NewString(): false,
		"{" + older + "}": false, strings.Replace(older, "-", "0", 1): false, "zz" + older[2:]: false, fmt.Sprintf("%x", uuid.MustParse(older)): false} {
		if f.Covers(journal.IDOf(id)) != covered {
			t.Errorf("%s: covered %v", id, !covered)
		}
	}
	f.Raise(journal.IDOf("x"))
	if !f.Covers(journal.IDOf("y")) || f.Covers(journal.IDOf(newer)) {
		t.Error("ids without an order are mixed up with those that have one")
	}
}

func BenchmarkCall(b *testing.B) {
	j := openAt(b, journal.Options{Dir: b.TempDir()})
	ids := make([]journal.ID, b.N)
	for i := range ids {
		ids[i] = journal.IDOf(fmt.Sprint(i))
	}
	exit := 0
	b.ReportAllocs()
	b.ResetTimer()
	for _, id := range ids {
		done(b, j.Start(id, "shell_exec", false), j.Process(id, 1234), j.End(id, &exit))
	}
}
