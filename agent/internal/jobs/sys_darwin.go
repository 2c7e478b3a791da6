package jobs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// BootID names this run of the host's system: it changes with each start. "" when the system
// doesn't tell.
func BootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}

// Self is the running program as it can be started again. When its file was replaced
// meanwhile, that's the new one.
func Self() (string, error) { return os.Executable() }

// inMemory is a file of these bytes that lies on no disk: there's none here.
func inMemory([]byte) (*os.File, error) { return nil, errors.ErrUnsupported }
