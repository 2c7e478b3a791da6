package capability

import (
	"syscall"

	"golang.org/x/sys/windows"

	"github.com/drover-fleet/drover/protocol"
)

func reasonOfSystem(errno syscall.Errno) string {
	switch errno {
	case windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED:
		return protocol.ReasonENOSPC
	case windows.ERROR_WRITE_PROTECT:
		return protocol.ReasonEROFS
	case windows.ERROR_DIRECTORY:
		return protocol.ReasonENOTDIR
	case windows.ERROR_INVALID_NAME, windows.ERROR_INVALID_PARAMETER:
		return protocol.ReasonEINVAL
	case windows.ERROR_FILENAME_EXCED_RANGE:
		return protocol.ReasonENAMETOOLONG
	case windows.ERROR_SHARING_VIOLATION, windows.ERROR_LOCK_VIOLATION:
		return "etxtbsy"
	}
	return ""
}
