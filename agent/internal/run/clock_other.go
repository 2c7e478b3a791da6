//go:build !linux

package run

import "time"

// steady is the time of day: it runs on while the host is asleep.
func steady() time.Duration { return wall() }
