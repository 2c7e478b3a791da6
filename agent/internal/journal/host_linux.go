package journal

import (
	"errors"
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
