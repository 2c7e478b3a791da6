package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// give puts an access list in the place of a file's or folder's.
func give(t *testing.T, path, list string) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString(list)
	if err == nil {
		err = setAccess(path, sd)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFoldersOfOthersAreRefused: a folder, or a key, that others may read isn't used; an
// empty folder is made private.
func TestFoldersOfOthersAreRefused(t *testing.T) {
	me, err := user()
	if err != nil {
		t.Fatal(err)
	}
	open := "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;" + me.String() + ")(A;OICI;FR;;;WD)"
	r, ts := newRegistrar(t)
	e := r.enrolment(t, ts.URL)
	e.Dir = filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(e.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	give(t, e.Dir, open)
	if who, err := others(e.Dir, me); err != nil || who == "" {
		t.Fatalf("an open folder: %q, %v", who, err)
	}
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
	for _, path := range []string{e.Dir, filepath.Join(e.Dir, keyFile)} {
		if who, err := others(path, me); err != nil || who != "" {
			t.Errorf("%s is open to %q, %v", path, who, err)
		}
	}
	for _, path := range []string{filepath.Join(e.Dir, keyFile), e.Dir} {
		give(t, path, open)
		if _, err := Open(e.Dir); err == nil || !strings.Contains(err.Error(), "may be read or written by") {
			t.Errorf("%s: %v", path, err)
		}
		give(t, path, "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;"+me.String()+")")
	}
	id, err = Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
}
