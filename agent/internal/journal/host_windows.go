package journal

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/windows"
)

// timeOfDay is SYSTEM_TIMEOFDAY_INFORMATION.
type timeOfDay struct {
	BootTime, CurrentTime, TimeZoneBias int64
	TimeZoneID, reserved                uint32
	BootTimeBias, SleepTimeBias         uint64
}

// hostBoot names the host's boot by its time, which the system moves when the clock is set;
// the bias takes that out. "" when the system doesn't say.
func hostBoot() string {
	var t timeOfDay
	const systemTimeOfDayInformation = 3
	if err := windows.NtQuerySystemInformation(systemTimeOfDayInformation, unsafe.Pointer(&t), uint32(unsafe.Sizeof(t)), nil); err != nil {
		return ""
	}
	return strconv.FormatInt(t.BootTime-int64(t.BootTimeBias), 10)
}

// allocate does nothing: writing takes the space.
func allocate(*os.File, int64) error { return nil }

// smallPages does nothing: the system isn't asked for it.
func smallPages(*os.File, int64) {}
