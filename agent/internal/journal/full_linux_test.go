package journal_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/tests/testenv"
)

// disk is a file system of a few bytes.
func disk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	testenv.Require(t, err == nil, "a small file system can't be mounted: run the test as root")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zeros, _ := os.Open("/dev/zero")
	defer zeros.Close()
	if _, err := io.Copy(f, zeros); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk isn't full: %v", err)
	}
}

func TestAFullDiskLocksNobodyOut(t *testing.T) {
	dir := disk(t, "2m")
	j := openAt(t, journal.Options{Dir: dir})
	fill(t, dir)
	for i := range journal.Slots + 10 {
		if err := j.Start(idAt(i), "t", i%100 == 0); err != nil {
			t.Fatalf("entry %d on a full disk: %v", i, err)
		}
		done(t, j.Process(idAt(i), i), j.End(idAt(i), nil))
	}
	boot := j.Boot()
	j = openAt(t, journal.Options{Dir: dir})
	if _, ok := j.Find(idAt(journal.Slots)); !ok || j.Boot() != boot {
		t.Errorf("an agent that's started on a full disk: found %v, %s instead of %s", ok, j.Boot(), boot)
	}
}

func TestAJournalThatHasNoRoomIsAnError(t *testing.T) {
	dir := disk(t, "512k")
	if j, err := journal.Open(journal.Options{Dir: dir}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v, %v", j, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}
