package journal

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// hostBoot names the host's boot; "" when the system doesn't say.
func hostBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// allocate takes the space of a file, also on file systems that store zeros as nothing.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return nil // writing takes it
	}
	return err
}

// smallPages has the system keep the file in memory page by page. What was written or read
// at once it keeps in large pieces, of which each write of a slot would walk all blocks. It's
// a help, not a need. What the file holds must be on the disk.
func smallPages(f *os.File, size int64) {
	fd := int(f.Fd())
	if unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) == nil && unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) == nil {
		_, _ = io.Copy(io.Discard, io.NewSectionReader(f, 0, size)) // an error comes again with a write
	}
}
