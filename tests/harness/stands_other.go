//go:build unix && !linux

package harness

// stands: other systems aren't asked.
func stands(int) bool { return true }
