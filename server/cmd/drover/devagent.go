package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/drover-fleet/drover/server/internal/callargs"
)

// agentName is what the agent's program is called.
func agentName() string {
	if runtime.GOOS == "windows" {
		return "drover-agent.exe"
	}
	return "drover-agent"
}

// agentWord is the agent's program as a line to paste names it, for a host that reaches the
// server at base. Only a loopback address tells that this is the host: there the line names a
// program that the shell wouldn't find by its path.
func agentWord(base string) string {
	if _, err := exec.LookPath(agentName()); err == nil || !loopbackURL(base) {
		return "drover-agent"
	}
	if path, err := agentBinary(); err == nil {
		return callargs.Word(path)
	}
	return "drover-agent"
}

// agentBinary finds drover-agent: beside this program, or on the PATH.
func agentBinary() (string, error) {
	name := agentName()
	self, err := os.Executable()
	if err == nil {
		if real, rerr := filepath.EvalSymlinks(self); rerr == nil {
			self = real
		}
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is neither beside %s nor on the PATH; build both with: make build", name, self)
}

// childAgent is the agent that drover dev started.
type childAgent struct {
	cmd       *exec.Cmd
	tokenFile string
	log       *os.File
	logPath   string
	ended     chan struct{} // closed when the process is gone and err is set
	err       error
}

// startAgent starts the agent, with an enrolment token if it has no key yet. The token is
// in a file of its own: arguments and environments can be seen by others.
func startAgent(bin, serverURL, dir, enrolment string) (*childAgent, error) {
	args := []string{"run", "--server", serverURL, "--state", filepath.Join(dir, "agent")}
	tokenFile := filepath.Join(dir, "agent-token")
	if enrolment != "" {
		if err := writePrivate(tokenFile, enrolment+"\n"); err != nil {
			return nil, err
		}
		args = append(args, "--token-file", tokenFile)
	} else if err := os.Remove(tokenFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	c := &childAgent{tokenFile: tokenFile, logPath: filepath.Join(dir, "agent.log"), ended: make(chan struct{})}
	var err error
	if c.log, err = os.OpenFile(c.logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return nil, err
	}
	c.cmd = exec.Command(bin, args...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.Env = withoutSecrets(os.Environ())
	c.cmd.SysProcAttr = childAttr()
	started := make(chan error, 1)
	go c.live(started)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("the agent can't be started: %w", err), c.log.Close())
	}
	return c, nil
}

// live starts the process and waits for it on one thread: on Linux the child is tied to
// the life of the thread that started it.
func (c *childAgent) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	c.err = c.cmd.Wait()
	_ = c.log.Close()
	close(c.ended)
}

// withoutSecrets drops this program's own settings: the agent has flags.
func withoutSecrets(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "DROVER_") {
			out = append(out, e)
		}
	}
	return out
}

// why tells how the agent ended, in its own last words.
func (c *childAgent) why() string {
	why := "exit 0"
	if c.err != nil {
		why = c.err.Error()
	}
	if b, err := os.ReadFile(c.logPath); err == nil {
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			why += ": " + last
		}
	}
	return why
}

// end asks the agent to end, and ends it after a while.
func (c *childAgent) end() {
	terminate(c.cmd.Process)
	select {
	case <-c.ended:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
}
