//go:build !windows

package guard_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/agent/internal/guard"
)

// estate is a folder with an open part, the agent's own folder, and what's outside.
type estate struct{ dir, pub, state, out string }

func newEstate(t *testing.T) estate {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e := estate{dir: dir, pub: dir + "/pub", state: dir + "/state", out: dir + "/out"}
	for _, d := range []string{e.pub + "/d", e.state, e.out} {
		mk(t, d+"/f", "in "+filepath.Base(d))
	}
	return e
}

func (e estate) files(t *testing.T, roots ...string) *guard.Files {
	t.Helper()
	files, err := guard.NewFiles(roots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	if err := files.Hide(e.state); err != nil {
		t.Fatal(err)
	}
	return files
}

func resolve(t *testing.T, files *guard.Files, path string) *guard.Place {
	t.Helper()
	place, err := files.Resolve(path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	t.Cleanup(place.Close)
	return place
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, place *guard.Place) (string, error) {
	t.Helper()
	f, err := place.Open(os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// What's done with a place is done where the walk came to, wherever a link that was put in
// the way since leads.
func TestASwappedLinkDoesNotLeadOut(t *testing.T) {
	for _, confined := range []bool{false, true} {
		for _, target := range []string{"../state", "../out"} {
			e := newEstate(t)
			var roots []string
			if confined {
				roots = []string{e.pub}
			}
			files := e.files(t, roots...)
			file, folder := resolve(t, files, e.pub+"/d/f"), resolve(t, files, e.pub+"/d/.")
			dir, err := folder.List()
			if err != nil {
				t.Fatal(err)
			}
			fresh, deep := resolve(t, files, e.pub+"/d/new"), resolve(t, files, e.pub+"/d/a/b/c")
			move(t, e.pub+"/d", e.pub+"/was")
			ln(t, target, e.pub+"/d")

			if got, err := content(t, file); got != "in d" {
				t.Errorf("read %q, %v", got, err)
			}
			temp := fresh.Beside("temp")
			f, err := temp.Open(os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			if err := temp.Rename(fresh); err != nil {
				t.Error(err)
			}
			if err := fresh.SyncFolder(); err != nil {
				t.Error(err)
			}
			made, err := deep.MakeParents(0o755)
			if err != nil || len(made) != 2 {
				t.Errorf("made %d, %v", len(made), err)
			}
			for _, m := range made {
				m.Close()
			}
			if l, err := folder.List(); err == nil {
				_ = l.Close()
				t.Error("a link was listed")
			}
			names, err := dir.Readdirnames(-1)
			if slices.Sort(names); err != nil || !slices.Equal(names, []string{"a", "f", "new"}) {
				t.Errorf("listed %v, %v", names, err)
			}
			if info, err := dir.Child("f").Lstat(); err != nil || info.Size() != 4 {
				t.Errorf("%v, %v", info, err)
			}
			_ = dir.Close()
			if err := file.Remove(); err != nil {
				t.Error(err)
			}
			if got := entries(t, e.pub+"/was") + ", " + entries(t, e.state) + ", " + entries(t, e.out); got != "a new, f, f" {
				t.Errorf("left %s", got)
			}
		}
	}
}

// What takes the place's own name meanwhile isn't followed, and the agent's folder not opened.
func TestAReplacedNameIsNotFollowed(t *testing.T) {
	e := newEstate(t)
	for _, roots := range [][]string{nil, {e.dir}, {e.pub}} {
		files := e.files(t, roots...)
		file, dir, deep := resolve(t, files, e.pub+"/d/f"), resolve(t, files, e.pub+"/d"), resolve(t, files, e.pub+"/new/x")
		move(t, e.pub+"/d/f", e.pub+"/f")
		ln(t, e.state+"/f", e.pub+"/d/f")
		if got, err := content(t, file); reasonOf(err) != "tool_failed eloop" {
			t.Errorf("link: %q, %v", got, err)
		}
		if f, err := file.Open(os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
			_ = f.Close()
			t.Error("a link was opened for writing")
		}
		if err := os.Remove(e.pub + "/d/f"); err != nil {
			t.Fatal(err)
		}
		move(t, e.pub+"/f", e.pub+"/d/f")

		ln(t, e.state, e.pub+"/new")
		if made, err := deep.MakeParents(0o755); err == nil || len(made) != 0 {
			t.Errorf("went through a link: %v", made)
		}
		if err := os.Remove(e.pub + "/new"); err != nil {
			t.Fatal(err)
		}

		move(t, e.pub+"/d", e.pub+"/was")
		move(t, e.state, e.pub+"/d") // by its inode, wherever it is
		if _, err := dir.List(); reasonOf(err) != "tool_failed eacces" {
			t.Errorf("list: %v", err)
		}
		if _, err := dir.Lstat(); reasonOf(err) != "tool_failed eacces" {
			t.Errorf("lstat: %v", err)
		}
		if _, err := dir.Open(os.O_RDONLY, 0); reasonOf(err) != "tool_failed eacces" {
			t.Errorf("open: %v", err)
		}
		for _, path := range []string{"/d", "/d/", "/d/f", "/d/..", "/was/../d/f"} {
			if _, err := files.Resolve(e.pub + path); reasonOf(err) != "tool_failed eacces" {
				t.Errorf("%s: %v", path, err)
			}
		}
		move(t, e.pub+"/d", e.state)
		move(t, e.pub+"/was", e.pub+"/d")
	}
}

// A walk goes back up as often as it likes, also further than it holds folders open, and in
// and out of roots that lie within each other.
func TestDotDotIsTheFolderAbove(t *testing.T) {
	e := newEstate(t)
	deep := e.pub + strings.Repeat("/x", 100)
	mk(t, deep+"/f", "deep")
	mk(t, e.pub+"/x/g", "g")
	ln(t, strings.Repeat("../", 99)+"g", deep+"/up")
	for _, roots := range [][]string{nil, {e.pub}, {e.pub + "/x/x/x", e.pub, deep}} {
		files := e.files(t, roots...)
		for path, want := range map[string]string{
			deep + "/f": "deep", deep + "/up": "g", deep + strings.Repeat("/..", 100) + "/x/g": "g", deep + strings.Repeat("/..", 99) + "/x/../g": "g",
		} {
			if got, err := content(t, resolve(t, files, path)); got != want {
				t.Errorf("%s with roots %v: %q, %v", path, roots, got, err)
			}
		}
	}
}
