package capability

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

const (
	slashes  = `/\:`
	caseless = true
)

// programAt tells whether a program is there, trying the extensions of PATHEXT.
func programAt(path string, env []string) (string, error) {
	names := []string{path}
	if filepath.Ext(path) == "" {
		names = nil
		exts := variable(env, "PATHEXT")
		if exts == "" {
			exts = ".COM;.EXE"
		}
		for ext := range strings.SplitSeq(exts, ";") {
			names = append(names, path+ext)
		}
	}
	var err error
	for _, name := range names {
		var info os.FileInfo
		if info, err = os.Stat(name); err == nil && !info.IsDir() {
			return name, nil
		}
	}
	if err == nil {
		err = os.ErrPermission
	}
	return "", &os.PathError{Op: "exec", Path: path, Err: err}
}

// exitOf writes down how a command ended by itself. Windows has no signals.
func exitOf(state *os.ProcessState, out *capability.ProcessOut) error {
	out.ExitCode = state.ExitCode()
	return nil
}

// shellOf finds the shell for command lines.
func shellOf(env map[string]string) []string {
	for name, value := range env {
		if strings.EqualFold(name, "SystemRoot") {
			return []string{filepath.Join(value, "System32", "cmd.exe")}
		}
	}
	return []string{`C:\Windows\System32\cmd.exe`}
}

// shellCommand is a command line for cmd. With /s it strips the outer quotes and takes the
// rest as it is, so no quoting of ours changes the line.
func (h *Host) shellCommand(line string, cmd *command) {
	cmd.path, cmd.argv = h.shell[0], []string{h.shell[0]}
	cmd.line = `"` + h.shell[0] + `" /d /s /c "` + line + `"`
}

// argvAllowed refuses batch files: cmd reads their arguments again, by rules that no
// quoting satisfies.
func argvAllowed(path string) error {
	switch strings.ToLower(filepath.Ext(strings.TrimRight(path, ". "))) {
	case ".bat", ".cmd":
		return protocol.Failf(protocol.ReasonEINVAL, "arguments can't be passed unchanged to a batch file; use command instead of argv")
	}
	return nil
}

// pending tells that a pipe holds bytes that nobody has read yet. Here the question would wait
// for the reader, so it isn't asked.
func pending(*os.File) bool { return false }
