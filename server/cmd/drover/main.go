// Command drover is Drover's server and its command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// version is set by the release's build.
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end; a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, args: os.Args[1:],
		inTTY: isTerminal(os.Stdin), outTTY: isTerminal(os.Stdout), errTTY: isTerminal(os.Stderr),
	}
	os.Exit(a.run(ctx))
}

// app is one invocation and the world around it.
type app struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	args     []string
	inTTY    bool
	outTTY   bool
	errTTY   bool
}

// exit is an error with the exit code that it stands for. A nil cause prints nothing.
type exit struct {
	code  int
	cause error
}

func (e *exit) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.cause.Error()
}

func (e *exit) Unwrap() error { return e.cause }

// Exit codes of drover itself; drover call has the command's own and exitCall.
const (
	exitFailed = 1
	exitUsage  = 2
	exitQueued = 75 // EX_TEMPFAIL: the call waits for its host
	exitCall   = 255
)

func (a *app) run(ctx context.Context) int {
	root := a.root()
	root.SetArgs(a.args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	code, cause := exitFailed, err
	var ex *exit
	switch {
	case errors.As(err, &ex):
		code, cause = ex.code, ex.cause
	case cmd != nil && callLike(cmd):
		code = exitCall
	case fleet.AsError(err).Code == protocol.CodeBadArgs: // whoever found it: nothing was done
		code = exitUsage
	}
	if cause != nil {
		a.complain(cause)
	}
	return code
}

// callLike tells whether a command's own failures have exitCall as their code.
func callLike(cmd *cobra.Command) bool { return cmd.Name() == "call" || cmd.Name() == "cp" }

// complain writes an error: drover: CODE: what happened and what to do.
func (a *app) complain(err error) {
	var fe *fleet.Error
	msg := err.Error()
	if errors.As(err, &fe) {
		msg = fmt.Sprintf("%s: %s", fe.Code, fe.Message)
		if fe.Reason != "" {
			msg = fmt.Sprintf("%s (%s): %s", fe.Code, fe.Reason, fe.Message)
		}
	}
	fmt.Fprintln(a.err, "drover: "+text.Visible(msg))
}

func (a *app) say(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

// versionText is the version of this build: the release's, or the commit that it was built
// from.
func versionText() string {
	if version != "" {
		return version
	}
	if bi, ok := debug.ReadBuildInfo(); ok {
		rev, dirty := "", ""
		for _, s := range bi.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				rev = s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+"
			}
		}
		if rev != "" {
			return "dev-" + rev + dirty
		}
	}
	return "dev"
}

func isTerminal(f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && fi.Mode()&os.ModeDevice != 0
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "drover",
		Short: "Drive many hosts; a command reaches exactly the host it names",
		Long: `Drover runs commands on many hosts for you, for Claude and for other programs.
A small agent on each host dials out to the server; every call names its agent,
and runs on that one or on none.

A first day:
  drover dev                                        # server, token and an agent on this machine
A real one:
  drover serve --data /var/lib/drover               # the server
  drover pat create --name me --agents all --tools all --admin
  drover enroll create --agent-id web-01            # prints what to paste on the host
  drover agents list
  drover tools --agent web-01
  drover call --agent web-01 shell_exec command=uptime
  drover cp ./app.tar web-01:/srv/app.tar

Exit code: 2 when the command line is wrong (drover: bad_args: …; nothing was done): a
command or flag that isn't one, an argument or a required flag that's missing, a value that
can't be. 1 when something else is wrong or fails. drover call and drover cp have codes of
their own: their help says which.`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: a.fromEnv,
		Args:              onlyCommands,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		code := exitUsage
		if callLike(c) {
			code = exitCall
		}
		return &exit{code: code, cause: fmt.Errorf("bad_args: %w; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(a.serveCmd(), a.devCmd(), a.agentsCmd(), a.callCmd(), a.cpCmd(), a.toolsCmd(), a.patCmd(), a.enrollCmd(), a.auditCmd(), a.versionCmd(), a.docsCmd())
	onlyKnown(root, a.args)
	return root
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, "drover "+versionText())
			return err
		},
	}
}
