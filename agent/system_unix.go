//go:build !windows

package agent

import "os"

// privileged tells whether the agent may do everything on this host.
func privileged() bool { return os.Geteuid() == 0 }
