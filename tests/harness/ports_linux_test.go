package harness

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAPortIsOnesOwn: another process' tests don't get a port whose server is away for a
// moment, and get it once the test has ended.
func TestAPortIsOnesOwn(t *testing.T) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "drover-test-ports"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var port int
	taken := func() bool {
		look := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(port), Len: 1} // as an opened file of its own, like another process'
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &look); err != nil {
			t.Fatal(err)
		}
		return look.Type != unix.F_UNLCK
	}
	t.Run("a test", func(t *testing.T) {
		_, text, err := net.SplitHostPort(FreeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		if port, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		if !taken() {
			t.Error("another process may have the port")
		}
	})
	if taken() {
		t.Error("the port is kept beyond its test")
	}
}
