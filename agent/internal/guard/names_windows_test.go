package guard_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/drover-fleet/drover/agent/internal/guard"
)

// TestTheAgentsOwnFolderHasOtherNames: by its short name it's the same folder.
func TestTheAgentsOwnFolderHasOtherNames(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "a long name of state")
	mk(t, filepath.Join(state, "agent.key"), "secret")
	long, err := windows.UTF16PtrFromString(state)
	if err != nil {
		t.Fatal(err)
	}
	var buf [windows.MAX_LONG_PATH]uint16
	if _, err := windows.GetShortPathName(long, &buf[0], uint32(len(buf))); err != nil {
		t.Fatal(err)
	}
	short := windows.UTF16ToString(buf[:])
	if strings.EqualFold(short, state) {
		t.Skip("this volume keeps no short names")
	}
	for _, roots := range [][]string{nil, {dir}} {
		files, err := guard.NewFiles(roots)
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		if err := files.Hide(state); err != nil {
			t.Fatal(err)
		}
		at := dir + `\` + filepath.Base(short)
		for _, path := range []string{state, strings.ToUpper(state), at, at + `\agent.key`, at + `\new\file`, strings.ReplaceAll(at, `\`, "/")} {
			place, err := files.Resolve(path)
			if err == nil {
				_, err = place.Lstat()
			}
			if reasonOf(err) != "tool_failed eacces" {
				t.Errorf("%s with roots %v: %v", path, roots, err)
			}
		}
	}
}
