package guard_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/protocol"
)

func TestEscapeIsReversibleAndClean(t *testing.T) {
	if runtime.GOOS == "windows" {
		if got := guard.Escape("half \xed\xa0\x80 and C:\\x41"); got != "half \uFFFD and C:\\x41" {
			t.Errorf("%q", got)
		}
		return // names hold nothing else that's escaped
	}
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.SampledFrom([]string{"\\", "x", "\\x", "4", "1", "ff", "\xff", "\n", "\x1b[2J", "é", "e\u0301", "\u202e", "😀", "-rf", " ", ".", "\xf0\x9f"})
		name := strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), "")
		written := guard.Escape(name)
		if back := guard.Unescape(written); back != name {
			t.Fatalf("%q → %q → %q", name, written, back)
		}
		if !utf8.ValidString(written) || strings.ContainsAny(written, "\n\x1b\u202e") {
			t.Fatalf("%q is written %q", name, written)
		}
	})
	for name, want := range map[string]string{"bad\xff.txt": `bad\xff.txt`, "a\nb": `a\x0ab`, `C:\xyz`: `C:\xyz`, `a\x41`: `a\x5cx41`, "é": "é", "e\u0301": "e\u0301"} {
		if got := guard.Escape(name); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

func reasonOf(err error) string {
	var pe *protocol.Error
	if errors.As(err, &pe) {
		return string(pe.Code) + " " + pe.Reason
	}
	return ""
}

func mk(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func ln(t *testing.T, target, name string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(name); err != nil {
		t.Skip("this system only says that it made a link") // Wine
	}
	return name
}

func TestF02_EverySpellingOfOutsideGetsOneVerdict(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "srv", "ok")
	mk(t, root+"/f", "in")
	mk(t, root+"/sub/g", "in")
	mk(t, dir+"/srv/ok_secret/f", "out")
	ln(t, dir+"/srv/ok_secret/hidden", root+"/out")
	ln(t, "../ok_secret", root+"/rel")
	ln(t, "out", root+"/twice")
	ln(t, dir+"/srv/ok_secret/missing", root+"/dangling")
	files, err := guard.NewFiles([]string{root})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for _, path := range []string{
		"..", ".", "f", root + "/..", root + "/../ok_secret/f", dir + "/srv/ok_secret/f", dir + "/srv//ok/./../x", dir + "/srv/ok_secre",
		root + "/sub/../../ok_secret/f", `C:\ok\..\x`, `\\?\C:\x`, "C:x", "file:///etc/passwd", "file://" + root + "/f", "~/x", "",
		"/", "/etc/passwd", "/proc/self/root/etc/passwd", dir + "/srv", dir + "/srv/", root + "/out", root + "/out/x", root + "/rel/f", root + "/rel/../ok/f",
		root + "/twice", root + "/dangling", root + `/\x2e\x2e/ok_secret/f`, root + `\x2f..\x2fok_secret\x2ff`,
	} {
		_, err := files.Resolve(path)
		if reasonOf(err) != "tool_failed outside_root" {
			t.Errorf("%q: %v", path, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("F-11: %q: names a link's target: %v", path, err)
		}
	}
	for _, path := range []string{root, root + "/", root + "/f", root + "//./f", root + "/sub/../f", root + "/sub/../../ok/f", dir + "/srv/../srv/ok/f", root + "/new/file"} {
		if _, err := files.Resolve(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestLinksThatStayInsideWorkAlsoWhenAbsolute(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	mk(t, real+"/data/f", "in")
	ln(t, real, dir+"/alias")
	ln(t, real+"/data", real+"/abs")
	ln(t, "data/f", real+"/rel")
	ln(t, "loop", real+"/loop")
	files, err := guard.NewFiles([]string{dir + "/alias"})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for _, path := range []string{dir + "/alias/abs/f", dir + "/alias/rel", real + "/abs/f", real + "/rel"} {
		place, err := files.Resolve(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		f, err := place.Open(os.O_RDONLY, 0)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		_ = f.Close()
	}
	if _, err := files.Resolve(real + "/loop"); reasonOf(err) != "tool_failed eloop" {
		t.Errorf("loop: %v", err)
	}
	if _, err := files.Resolve(real + "/data/f/x"); reasonOf(err) != "tool_failed enotdir" {
		t.Errorf("through a file: %v", err)
	}
	if place, err := files.ResolveLink(real + "/abs"); err != nil || filepath.Base(place.Path()) != "abs" {
		t.Errorf("the link itself: %v %v", place, err)
	}
}

func TestWithoutRootsOnlyRelativePathsAreRefused(t *testing.T) {
	files, err := guard.NewFiles(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"..", "x", "C:x", "file:///etc/passwd", "~/x"} {
		if _, err := files.Resolve(path); reasonOf(err) != "bad_args " {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := files.Resolve(`/tmp/a\x00b`); reasonOf(err) != "bad_args " {
		t.Errorf("NUL: %v", err)
	}
	top := filepath.VolumeName(t.TempDir()) + string(filepath.Separator)
	if place, err := files.Resolve(top + "tmp/../"); err != nil || place.Path() != top {
		t.Errorf("%v %v", place, err)
	}
}

func TestRootsMustBeThereAndAbsolute(t *testing.T) {
	for _, root := range []string{"relative", filepath.Join(t.TempDir(), "missing"), mk(t, filepath.Join(t.TempDir(), "file"), "")} {
		if files, err := guard.NewFiles([]string{root}); err == nil {
			_ = files.Close()
			t.Errorf("%s: taken", root)
		}
	}
}

func TestTheAgentsOwnFolderIsOutOfReach(t *testing.T) {
	dir := t.TempDir()
	key := mk(t, dir+"/state/agent.key", "secret")
	mk(t, dir+"/state2/f", "")
	ln(t, dir+"/state", dir+"/alias")
	for _, roots := range [][]string{nil, {dir}} {
		files, err := guard.NewFiles(roots)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.Hide(dir + "/alias"); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{key, dir + "/state", dir + "/alias/agent.key", dir + "/state/../state/new", dir + "/state2/../alias/agent.key"} {
			if _, err := files.Resolve(path); reasonOf(err) != "tool_failed eacces" {
				t.Errorf("%s with roots %v: %v", path, roots, err)
			}
		}
		if _, err := files.Resolve(dir + "/state2/f"); err != nil {
			t.Error(err)
		}
		if err := files.Close(); err != nil {
			t.Error(err)
		}
	}
}
