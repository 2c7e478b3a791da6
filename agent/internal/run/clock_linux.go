package run

import (
	"time"

	"golang.org/x/sys/unix"
)

// steady is a clock that nobody sets, and that runs on while the host is asleep.
func steady() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return wall()
	}
	return time.Duration(ts.Nano())
}
