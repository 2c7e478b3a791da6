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
	none := capability.ProcessOut{}
	if (in.Command == "") == (len(in.Argv) == 0) {
		return none, protocol.Errorf(protocol.CodeBadArgs, "shell_exec needs either command or argv, and not both")
	}
	cmd, err := h.newCommand(c, in.Cwd, in.Env)
	if err != nil {
		return none, err
	}
	if in.Command != "" {
		if strings.ContainsRune(in.Command, 0) {
			return none, protocol.Errorf(protocol.CodeBadArgs, "command holds a NUL byte; use stdin for binary data")
		}
		h.shellCommand(in.Command, &cmd)
	} else if err := h.program(in.Argv, &cmd); err != nil {
		return capability.ProcessOut{ExitCode: -1}, err
	}
	cmd.stdin = in.Stdin
	cmd.timeout = timeoutOf(in.TimeoutSeconds)
	cmd.limit = cmp.Or(in.MaxOutput, capability.DefaultOutput)
	return h.runProcess(ctx, c, cmd)
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
	return command{dir: dir, env: append(env, "PWD="+dir)}, nil
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
		if derr := h.checkDir(cmd.dir); derr != nil {
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
