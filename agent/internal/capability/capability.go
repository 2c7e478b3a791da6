// Package capability does what the tools of protocol/capability promise: one file each.
package capability

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/proctree"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/agent/internal/spool"
	"github.com/drover-fleet/drover/protocol/capability"
)

// Host is what the capabilities know of the host that they serve and of its agent.
type Host struct {
	AgentID string
	Version string // of the agent
	RunAs   string // the user that commands run as
	Files   *guard.Files
	Jobs    *jobs.Manager // nil: background jobs aren't offered
	Log     *slog.Logger
	// Output is the folder in which the output of calls is kept that is more than an answer
	// holds; "" keeps none. Only this process uses it.
	Output       string
	OutputLimits spool.Limits

	env   map[string]string // what commands inherit
	home  string            // where commands run unless told otherwise
	shell []string          // the shell and its options, before the command
	pwsh  string            // PowerShell, "" where there is none
	locks pathLocks
	parts parts
	// groups is nil where commands get no cgroup of their own.
	groups *proctree.Groups
	spool  *spool.Spool

	owners owners
}

// Bind offers every capability that this host has.
func Bind(r *run.Registry, h *Host) {
	h.env = inherited(os.Environ())
	maps.DeleteFunc(h.env, func(_, v string) bool { return v == "" })
	h.home = homeOf(h.env)
	h.shell = shellOf(h.env)
	if h.env["SHELL"] == "" && runtime.GOOS != "windows" {
		// Otherwise each shell would look its user up, which may ask a directory over the network.
		h.env["SHELL"] = h.shell[0]
	}
	h.pwsh = findPowerShell()
	h.findGroups()
	h.openSpool()
	run.Bind(r, capability.ShellExec, h.shellExec)
	run.Bind(r, capability.ShellOutput, h.shellOutput)
	if h.pwsh != "" {
		run.Bind(r, capability.PowerShellExec, h.powerShellExec)
	}
	run.Bind(r, capability.FSList, h.fsList)
	run.Bind(r, capability.FSStat, h.fsStat)
	run.Bind(r, capability.FSRead, h.fsRead)
	run.Bind(r, capability.FSWrite, h.fsWrite)
	run.Bind(r, capability.FSDownload, h.fsDownload)
	run.Bind(r, capability.FSUpload, h.fsUpload)
	run.Bind(r, capability.DiagSystem, h.diagSystem)
	if h.Jobs != nil {
		run.Bind(r, capability.JobStart, h.jobStart)
		run.Recall(r, capability.JobStart, h.jobStarted)
		run.Bind(r, capability.JobList, h.jobList)
		run.Bind(r, capability.JobOutput, h.jobOutput)
		run.Bind(r, capability.JobStop, h.jobStop)
	}
}

func homeOf(env map[string]string) string {
	for _, dir := range []string{env["HOME"], env["USERPROFILE"]} {
		if info, err := os.Stat(dir); dir != "" && err == nil && info.IsDir() {
			return dir
		}
	}
	if wd, err := os.Getwd(); err == nil {
		return filepath.VolumeName(wd) + string(filepath.Separator)
	}
	return string(filepath.Separator)
}
