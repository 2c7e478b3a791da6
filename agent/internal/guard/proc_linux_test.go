package guard_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/drover-fleet/drover/agent/internal/guard"
)

// Links of /proc lead to open files themselves; they're read, never followed.
func TestLinksOfProcAreNoWayAround(t *testing.T) {
	e := newEstate(t)
	ln(t, "/proc/self/root"+e.state, e.pub+"/root")
	for _, path := range []string{e.state, e.state + "/f", e.pub + "/d", e.pub + "/d/f"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ln(t, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), e.pub+"/fd-"+fmt.Sprint(f.Fd()))
		want := ""
		if path == e.state || path == e.state+"/f" {
			want = "tool_failed eacces"
		}
		for _, way := range []string{fmt.Sprintf("/proc/self/fd/%d", f.Fd()), fmt.Sprintf("/dev/fd/%d", f.Fd()), fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()), e.pub + "/fd-" + fmt.Sprint(f.Fd())} {
			place, err := e.files(t).Resolve(way)
			if reasonOf(err) != want {
				t.Errorf("%s to %s: %v", way, path, err)
			}
			if err == nil {
				place.Close()
			}
			if _, err := e.files(t, e.pub).Resolve(way); way[:5] != e.pub[:5] && reasonOf(err) != "tool_failed outside_root" {
				t.Errorf("%s to %s with a root: %v", way, path, err)
			}
		}
	}
	for _, roots := range [][]string{nil, {"/"}} {
		for _, way := range []string{"/proc/self/root" + e.state + "/f", "/proc/self/root/proc/self/root" + e.state, e.pub + "/root/f", "/proc/self/cwd/../../../../../../.." + e.state + "/f"} {
			if _, err := e.files(t, roots...).Resolve(way); reasonOf(err) != "tool_failed eacces" {
				t.Errorf("%s with roots %v: %v", way, roots, err)
			}
		}
	}
	// A link whose words name something else than what it leads to isn't followed by its words.
	gone, err := os.Open(mk(t, e.pub+"/gone", "old"))
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	if err := os.Remove(e.pub + "/gone"); err != nil {
		t.Fatal(err)
	}
	mk(t, e.pub+"/gone (deleted)", "new")
	if _, err := e.files(t).Resolve(fmt.Sprintf("/proc/self/fd/%d", gone.Fd())); reasonOf(err) != "tool_failed einval" {
		t.Errorf("to a deleted file: %v", err)
	}
}

func TestWalksCloseWhatTheyOpen(t *testing.T) {
	e := newEstate(t)
	ln(t, "d/../d", e.pub+"/l")
	ln(t, "loop", e.pub+"/loop")
	files, rooted := e.files(t), e.files(t, e.pub)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	for range 20 {
		for _, path := range []string{e.pub + "/l/f", e.pub + "/l", e.pub, e.pub + "/loop", e.pub + "/d/f/x", e.pub + "/a/b", e.pub + "/d/../../pub/d/", e.state, e.state + "/f", e.out + "/f", "/"} {
			for _, find := range []func(string) (*guard.Place, error){files.Resolve, rooted.Resolve, files.ResolveLink, rooted.ResolveLink} {
				if place, err := find(path); err == nil {
					place.Close()
				}
			}
		}
	}
	if after := count(); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}
}
