package agent

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// osVersion is the version of the kernel, which no compatibility setting changes.
func osVersion() string {
	v := windows.RtlGetVersion()
	return fmt.Sprintf("Windows %d.%d.%d", v.MajorVersion, v.MinorVersion, v.BuildNumber)
}

// privileged tells whether the agent may do everything on this host.
func privileged() bool { return windows.GetCurrentProcessToken().IsElevated() }
