package jobs

import (
	"os"
	"strings"
)

// BootID names this run of the host's system: it changes with each start. "" when the system
// doesn't tell.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Self is the running program as it can be started again, also when its file was replaced
// meanwhile.
func Self() (string, error) {
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}
