package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/tests/testenv"
)

// memory is a runtime folder of a test's own.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "drover-test-")
	testenv.Require(t, err == nil, "there's no /dev/shm")
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var fs unix.Statfs_t
	testenv.Require(t, unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC, "/dev/shm isn't in memory")
	return dir
}

// only is the one file of a folder.
func only(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	return filepath.Join(dir, list[0].Name())
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// overwrite puts bytes into a file that stays the same file.
func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	before, err := os.Stat(path)
	done(t, err, os.WriteFile(path, b, 0o600))
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Fatalf("another file: %v", err)
	}
}

// rig is a journal whose process is killed and started again.
type rig struct {
	t        *testing.T
	o        journal.Options
	j        *journal.Journal
	path     string // of the journal
	calls    int
	previous string // the last one's name
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, o: journal.Options{Dir: t.TempDir(), Slots: 8, HostBoot: "boot 1", Runtime: memory(t)}}
	r.path = filepath.Join(r.o.Dir, name)
	r.j = openAt(t, r.o)
	return r
}

// call runs calls to their ends.
func (r *rig) call(n int) {
	r.t.Helper()
	for range n {
		r.calls++
		start(r.t, r.j, idAt(r.calls))
		done(r.t, r.j.End(idAt(r.calls), nil))
	}
}

// again is the next process.
func (r *rig) again() {
	r.t.Helper()
	r.previous = r.j.Boot()
	r.j = openAt(r.t, r.o)
	if err := r.j.Unwitnessed(); err != nil {
		r.t.Fatal(err)
	}
}

// is checks what the next process makes of the journal, and that the one after it agrees.
func (r *rig) is(same, older bool) {
	r.t.Helper()
	r.again()
	if (r.j.Boot() == r.previous) != same || r.j.Older() != older || r.j.Aside() != "" {
		r.t.Errorf("the same name: %v, older: %v, set aside: %q", r.j.Boot() == r.previous, r.j.Older(), r.j.Aside())
	}
	if r.again(); r.j.Boot() != r.previous || r.j.Older() {
		r.t.Error("without anything done to it, the name has changed once more")
	}
}

func TestAnOlderJournalGetsANewName(t *testing.T) {
	for what, do := range map[string]func(*rig){
		"the newest": func(r *rig) { r.is(true, false) },
		"a call's end is missing": func(r *rig) {
			start(t, r.j, idAt(100))
			b := read(t, r.path)
			done(t, r.j.End(idAt(100), nil))
			overwrite(t, r.path, b)
			r.is(true, false) // each call that began is there
		},
		"in place": func(r *rig) {
			b := read(t, r.path)
			r.call(1)
			overwrite(t, r.path, b)
			r.is(false, true)
		},
		"a lap later": func(r *rig) {
			b := read(t, r.path)
			r.call(8)
			overwrite(t, r.path, b)
			r.is(false, true)
		},
		"as another file": func(r *rig) {
			b := read(t, r.path)
			r.call(1)
			done(t, os.Remove(r.path), os.WriteFile(r.path, b, 0o600))
			r.is(false, true)
		},
		"under a process that goes on": func(r *rig) {
			b := read(t, r.path)
			r.call(2)
			overwrite(t, r.path, b)
			r.call(2) // these are written, the two before aren't there
			r.is(false, true)
		},
		"after several processes": func(r *rig) {
			b := read(t, r.path)
			for range 3 {
				r.call(1)
				r.is(true, false)
			}
			overwrite(t, r.path, b)
			r.is(false, true)
		},
		"back to the newest": func(r *rig) {
			first, b := r.j.Boot(), read(t, r.path)
			r.call(1)
			newest := read(t, r.path)
			overwrite(t, r.path, b)
			r.is(false, true)
			r.call(3)
			overwrite(t, r.path, newest)
			r.is(false, true)
			if r.j.Boot() == first {
				t.Error("the name that calls were sent under is back")
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.call(5)
			do(r)
		})
	}
}

// Whatever happens to the witness, the journal doesn't pass for what it was.
func TestAJournalWithoutItsWitnessGetsANewName(t *testing.T) {
	other := newRig(t)
	other.call(3)
	for what, do := range map[string]func(r *rig, witness string){
		"none":      func(r *rig, witness string) { done(r.t, os.Remove(witness)) },
		"no folder": func(r *rig, _ string) { done(r.t, os.RemoveAll(r.o.Runtime)) },
		"empty":     func(r *rig, witness string) { overwrite(r.t, witness, nil) },
		"damaged":   func(r *rig, witness string) { b := read(r.t, witness); b[10] ^= 1; overwrite(r.t, witness, b) },
		"another journal's": func(r *rig, witness string) {
			overwrite(r.t, witness, read(r.t, only(r.t, other.o.Runtime)))
		},
		"killed in between": func(r *rig, witness string) {
			b := read(r.t, witness)
			r.call(1)
			overwrite(r.t, witness, b)
		},
		"it and the journal are gone": func(r *rig, witness string) { done(r.t, os.Remove(witness), os.Remove(r.path)) },
		"the folder is a copy": func(r *rig, _ string) {
			dir := filepath.Join(r.t.TempDir(), "copy")
			done(r.t, os.CopyFS(dir, os.DirFS(r.o.Dir)))
			r.o.Dir = dir
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.call(3)
			do(r, only(t, r.o.Runtime))
			r.is(false, false)
		})
	}
}

// A folder that others write to, or that a backup may hold, is no place for a witness: then
// each process has a name of its own.
func TestAFolderThatIsNoPlaceForAWitness(t *testing.T) {
	for what, prepare := range map[string]func(t *testing.T) string{
		"on a disk": func(t *testing.T) string { return disky(t) },
		"open to others": func(t *testing.T) string {
			dir := memory(t)
			done(t, os.Chmod(dir, 0o777))
			return dir
		},
		"a link": func(t *testing.T) string {
			link := filepath.Join(memory(t), "link")
			done(t, os.Symlink(memory(t), link))
			return link
		},
		"a file": func(t *testing.T) string {
			file := filepath.Join(memory(t), "file")
			done(t, os.WriteFile(file, nil, 0o600))
			return file
		},
		"nowhere": func(t *testing.T) string { return filepath.Join(memory(t), "no", "folder") },
		"full": func(t *testing.T) string {
			dir := disk(t, "64k")
			done(t, os.Chmod(dir, 0o700))
			fill(t, dir)
			return dir
		},
	} {
		t.Run(what, func(t *testing.T) {
			o := journal.Options{Dir: t.TempDir(), Slots: 8, HostBoot: "boot 1", Runtime: prepare(t)}
			j := openAt(t, o)
			start(t, j, idAt(1))
			again := openAt(t, o)
			if j.Unwitnessed() == nil || again.Unwitnessed() == nil || again.Boot() == j.Boot() || len(j.Boot()) > 80 {
				t.Errorf("%v, %v: %s and %s", j.Unwitnessed(), again.Unwitnessed(), j.Boot(), again.Boot())
			}
			if _, ok := again.Find(idAt(1)); !ok {
				t.Error("the entry is lost")
			}
		})
	}
}

// disky is a folder that isn't in memory.
func disky(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var fs unix.Statfs_t
	testenv.Require(t, unix.Statfs(dir, &fs) == nil && fs.Type != unix.TMPFS_MAGIC, "the folder for temporary files is in memory: set TMPDIR to one that isn't")
	return dir
}

func TestAWitnessNeedsNoMoreRoom(t *testing.T) {
	r := newRig(t)
	r.o.Runtime = disk(t, "64k")
	done(t, os.Chmod(r.o.Runtime, 0o700))
	r.again()
	fill(t, r.o.Runtime)
	r.call(20)
	if err := r.j.Close(); err != nil {
		t.Error(err)
	}
}
