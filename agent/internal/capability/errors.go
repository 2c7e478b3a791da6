package capability

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

// sysError makes an error of the system one that travels. path is the caller's own path in
// its written form; what is a clause such as "can't be read".
func (h *Host) sysError(err error, path, what string) error {
	var pe *protocol.Error
	if errors.As(err, &pe) {
		return pe
	}
	var cancelled *mux.CancelError
	if errors.Is(err, run.ErrDeadline) || errors.Is(err, protocol.ErrCut) || errors.As(err, &cancelled) {
		return err // the call's end, not the system's word; the runner knows its code
	}
	shown := guard.Shown(guard.Unescape(path))
	if guard.Escaped(err) {
		return protocol.Failf(protocol.ReasonOutsideRoot, "%s leads outside the folders that this host opened to file tools", shown)
	}
	reason, why := explain(err)
	if reason == protocol.ReasonEACCES {
		why = fmt.Sprintf("the agent's user (%s) may not", h.RunAs)
	}
	return protocol.Failf(reason, "%s %s: %s", shown, what, why)
}

// explain names an error of the system by its reason and in words that hold no path.
func explain(err error) (reason, why string) {
	var errno syscall.Errno
	errors.As(err, &errno)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return protocol.ReasonENOENT, "no such file or folder"
	case errors.Is(err, fs.ErrPermission):
		return protocol.ReasonEACCES, "permission denied"
	case errors.Is(err, fs.ErrExist):
		return protocol.ReasonEEXIST, "it exists already"
	case errno == 0:
		return protocol.ReasonIO, "the system reported an error"
	}
	if reason := reasonOf(errno); reason != "" {
		return reason, errno.Error()
	}
	return protocol.ReasonIO, errno.Error()
}

// reasonOf names the errors that a caller can act on.
func reasonOf(errno syscall.Errno) string {
	switch errno {
	case syscall.EISDIR:
		return protocol.ReasonEISDIR
	case syscall.ENOTDIR:
		return protocol.ReasonENOTDIR
	case syscall.EROFS:
		return protocol.ReasonEROFS
	case syscall.ENOSPC, syscall.EDQUOT:
		return protocol.ReasonENOSPC
	case syscall.EINVAL:
		return protocol.ReasonEINVAL
	case syscall.ENAMETOOLONG:
		return protocol.ReasonENAMETOOLONG
	case syscall.ENXIO:
		return protocol.ReasonNotRegular
	case syscall.E2BIG:
		return "e2big"
	case syscall.ETXTBSY:
		return "etxtbsy"
	case syscall.ELOOP:
		return "eloop"
	case syscall.ENOEXEC:
		return "enoexec"
	}
	return reasonOfSystem(errno)
}
