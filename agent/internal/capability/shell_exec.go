package capability

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// shellExec runs a command line or a program.
func (h *Host) shellExec(ctx context.Context, c *run.Call, in capability.ShellExecIn) (capability.ProcessOut, error) {
	cmd, err := h.wanted(c, "shell_exec", wish{in.Command, in.Argv, in.Cwd, in.Env})
	if err != nil {
		return failedStart(err), err
	}
	cmd.stdin = in.Stdin
	cmd.timeout = timeoutOf(in.TimeoutSeconds)
	cmd.limit = cmp.Or(in.MaxOutput, capability.DefaultOutput)
	return h.runProcess(ctx, c, cmd)
}

// wish is what a caller asks to be run: a command line or a program, not both.
type wish struct {
	command string
	argv    []string
	cwd     string
	env     map[string]string
}

// wanted makes a command of what the caller of a tool asks for.
func (h *Host) wanted(c *run.Call, tool string, w wish) (command, error) {
	if (w.command == "") == (len(w.argv) == 0) {
		return command{}, protocol.Errorf(protocol.CodeBadArgs, "%s needs either command or argv, and not both", tool)
	}
	cmd, err := h.newCommand(c, w.cwd, w.env)
	if err != nil {
		return command{}, err
	}
	if w.command == "" {
		err := h.program(w.argv, &cmd)
		return cmd, err
	}
	if strings.ContainsRune(w.command, 0) {
		return command{}, protocol.Errorf(protocol.CodeBadArgs, "command holds a NUL byte; use stdin for binary data")
	}
	h.shellCommand(w.command, &cmd)
	return cmd, nil
}

// failedStart is the result of a command that the host couldn't start; none for arguments
// that were refused.
func failedStart(err error) capability.ProcessOut {
	var pe *protocol.Error
	if errors.As(err, &pe) && pe.Code == protocol.CodeBadArgs {
		return capability.ProcessOut{}
	}
	return capability.ProcessOut{ExitCode: -1}
}

// newCommand sets folder and environment.
func (h *Host) newCommand(c *run.Call, cwd string, add map[string]string) (command, error) {
	env, err := h.environment(c, add)
	if err != nil {
		return command{}, err
	}
	dir := h.home
	if cwd != "" {
		dir = guard.Unescape(cwd)
		if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) {
			return command{}, protocol.Errorf(protocol.CodeBadArgs, "cwd must be an absolute path")
		}
	}
	return command{dir: dir, home: cwd == "", env: append(env, "PWD="+dir)}, nil
}

// program finds argv's program; its bytes reach it unchanged.
func (h *Host) program(argv []string, cmd *command) error {
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return protocol.Errorf(protocol.CodeBadArgs, "an item of argv holds a NUL byte; use stdin for binary data")
		}
	}
	cmd.argv = argv
	path, err := lookProgram(argv[0], cmd.dir, cmd.env)
	if err != nil {
		var pe *protocol.Error
		if errors.As(err, &pe) {
			return pe
		}
		// A folder that isn't there would make every relative program look missing.
		if derr := h.checkDir(*cmd); derr != nil {
			return derr
		}
		return h.notStarted(err, *cmd)
	}
	cmd.path = path
	return argvAllowed(path)
}

func timeoutOf(seconds int) time.Duration {
	if seconds == 0 {
		return defaultTimeout
	}
	return time.Duration(seconds) * time.Second
}
