package proctree

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// KillLeftovers has nothing to do here: calls' job objects end with their agent.
func KillLeftovers(func(callID string) bool) (killed []int, owned bool) { return nil, false }

// Tree is a job object that holds a command and all that it starts. It dies with the
// agent, unless it was released.
type Tree struct {
	job windows.Handle
	pid int
}

// Start starts x in a job object of its own. line is the exact command line.
func Start(x *exec.Cmd, _, line string, _ *Groups) (*Tree, error) {
	x.SysProcAttr = &syscall.SysProcAttr{CmdLine: line, HideWindow: true,
		CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, fmt.Errorf("job object: %w", err)
	}
	t := &Tree{job: job}
	if err := t.limit(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE); err != nil {
		_ = windows.CloseHandle(job)
		return nil, fmt.Errorf("job object: %w", err)
	}
	if err := x.Start(); err != nil {
		_ = windows.CloseHandle(job)
		return nil, err
	}
	t.pid = x.Process.Pid
	// It's suspended until it's in the job, so that no child escapes.
	if err := t.adopt(); err != nil {
		_ = x.Process.Kill()
		_ = x.Wait()
		_ = windows.CloseHandle(job)
		return nil, fmt.Errorf("job object: %w", err)
	}
	return t, nil
}

func (t *Tree) limit(flags uint32) error {
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(t.job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	return err
}

// adopt puts the suspended process into the job and lets it run.
func (t *Tree) adopt() error {
	const suspendResume = 0x0800
	h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE|suspendResume, false, uint32(t.pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	if err := windows.AssignProcessToJobObject(t.job, h); err != nil {
		return err
	}
	resume := windows.NewLazySystemDLL("ntdll.dll").NewProc("NtResumeProcess")
	if err := resume.Find(); err != nil {
		return err
	}
	if status, _, _ := resume.Call(uintptr(h)); status != 0 {
		return windows.NTStatus(status)
	}
	return nil
}

// AwaitEnd returns at once: only a wait tells of the end here.
func (t *Tree) AwaitEnd() {}

// Release lets what the command left in the background live on.
func (t *Tree) Release() {
	_ = t.limit(0)
	_ = windows.CloseHandle(t.job)
}

// Kill ends the whole job at once: without a console there's no gentler signal that every
// program would hear. Nothing is done when the command has ended by itself: own.
func (t *Tree) Kill(exited <-chan struct{}) (left []int, own bool) {
	if t.over() {
		return nil, true
	}
	return t.kill(exited), false
}

// over tells that the command has ended, whether it was waited for yet or not. Its id stays
// its own until it was released, after its end was seen.
func (t *Tree) over() bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(t.pid))
	if err != nil {
		return errors.Is(err, windows.ERROR_INVALID_PARAMETER) // there's none of that id
	}
	defer windows.CloseHandle(h)
	event, err := windows.WaitForSingleObject(h, 0)
	return err == nil && event == windows.WAIT_OBJECT_0
}

func (t *Tree) kill(exited <-chan struct{}) []int {
	err := windows.TerminateJobObject(t.job, 1)
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-exited:
	case <-timer.C:
		return []int{t.pid}
	}
	if err != nil {
		return []int{t.pid}
	}
	return nil
}
