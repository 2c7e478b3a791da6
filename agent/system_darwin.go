package agent

import "golang.org/x/sys/unix"

// osVersion is the system's product version.
func osVersion() string {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return "macOS"
	}
	return "macOS " + version
}
