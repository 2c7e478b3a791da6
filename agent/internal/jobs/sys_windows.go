package jobs

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// BootID would name this run of the host's system. Windows has no such name; there the
// supervisor's lock and job object end with the system, and nothing else is asked.
func BootID() string { return "" }

// Self is the running program as it can be started again. When its file was replaced
// meanwhile, that's the new one.
func Self() (string, error) { return os.Executable() }

// tryLock takes the lock of an open file; false when another process has it.
func tryLock(f *os.File) bool {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{}) == nil
}

// folderID doesn't tell a copy of a folder from the first here: nothing of a job outlives its
// supervisor, so that nothing could be ended wrongly.
func folderID(string) string { return "" }

// detach keeps a supervisor out of the agent's console and process group.
func detach(x *exec.Cmd, _ string) (leave func(), err error) {
	x.SysProcAttr = &syscall.SysProcAttr{HideWindow: true, CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP}
	return func() {}, nil
}

// inherits tells that a supervisor has its job's lock from the agent, as inherited.
const inherits = false

func inherited() (*os.File, error) { return nil, errors.ErrUnsupported }

// launch starts a supervisor outside of the job object that the agent may be in; where that
// one lets nothing out, inside.
func launch(x *exec.Cmd) error {
	inside := *x
	attr := *x.SysProcAttr
	attr.CreationFlags |= windows.CREATE_BREAKAWAY_FROM_JOB
	x.SysProcAttr = &attr
	err := x.Start()
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		*x = inside
		err = x.Start()
	}
	return err
}

// readRest has nothing to do: a pipe's reads have no deadline here that could break them off.
func readRest(*os.File, func([]byte), []byte) {}

// inMemory is a file of these bytes that lies on no disk: there's none here.
func inMemory([]byte) (*os.File, error) { return nil, errors.ErrUnsupported }
