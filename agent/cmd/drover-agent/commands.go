package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-fleet/drover/agent"
	"github.com/drover-fleet/drover/protocol"
)

// tokenEnv holds an enrolment token; it doesn't follow the flag's name, which would make
// it one more DROVER_TOKEN.
const tokenEnv = "DROVER_ENROLL_TOKEN"

// options are the flags of run and enroll.
type options struct {
	agent.Config
	logFormat, logLevel string
	tokenFD             int
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "drover-agent",
		Short: "The Drover agent: lets a Drover server run calls on this host",
		Long: `drover-agent dials out to a Drover server and executes the calls that the server
sends to this host, as the user that it runs as. It opens no port.

An operator makes a token with "drover enroll create --agent-id ID" on the server;
the agent exchanges it once for the registration of a key that never leaves the host.

It exits with 2 when the command line is wrong, before anything was done: a command, a
flag or an argument that isn't one, or a value that can't be. It exits with 1 when something
else is wrong or fails.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(usage)
	root.AddCommand(newRun(), newEnroll(), newVersion(), newSupervisor())
	onlyKnown(root)
	return root
}

// onlyCommands refuses the name of a command that isn't there.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usage(cmd, fmt.Errorf("there's no command %q%s", args[0], like(cmd, args[0])))
}

// onlyKnown lets what the library adds, help and completion, refuse what isn't there, as our own
// commands do.
func onlyKnown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(os.Args[1:]...)
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				cmd, rest, err := root.Find(args)
				if err != nil || !cmd.HasSubCommands() {
					return err
				}
				return onlyCommands(cmd, rest)
			}
		case "completion":
			cmd.Args, cmd.RunE = onlyCommands, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		}
	}
}

// Exit codes: 2 when the command line is wrong, 1 for all that fails later.
const (
	exitFailed = 1
	exitUsage  = 2
)

type usageError struct{ error }

func usage(cmd *cobra.Command, err error) error {
	return &usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
}

// like says which commands have a name like this one.
func like(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2
	names := cmd.SuggestionsFor(name)
	if len(names) == 0 {
		return ""
	}
	return " (is it " + strings.Join(names, " or ") + "?)"
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, fmt.Errorf("%s takes no arguments, only flags; %q is one", cmd.CommandPath(), args[0]))
	}
	return nil
}

func exitCode(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

func newRun() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Connect to the server and serve calls; enrol first if that's still to be done",
		Example: `  drover-agent run --server https://drover.example.com --state /var/lib/drover-agent --token-file /root/token
  drover-agent run --state /var/lib/drover-agent
  drover-agent run --server http://127.0.0.1:7400 --state ./state --root /srv/www`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := o.agent(cmd)
			if err != nil {
				return err
			}
			return a.Run(cmd.Context())
		},
	}
	o.add(cmd)
	cmd.Flags().StringArrayVar(&o.Roots, "root", nil, "confine the file tools to this folder; repeatable. Commands aren't confined")
	return cmd
}

func newEnroll() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Enrol this host with a token and exit",
		Example: `  drover-agent enroll --server https://drover.example.com --state /var/lib/drover-agent --token-file /root/token
  drover-agent enroll --replace --state /var/lib/drover-agent --token-file /root/token`,
		Long: `Enrols this host with a token and exits. Run it as the user that the agent runs as.

With --replace an enrolment that's in the state folder already goes once the server has
accepted the new one, and not before. Start the agent again then. When an attempt breaks
off, run it again with the same token.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := o.agent(cmd)
			if err != nil {
				return err
			}
			id, err := a.Enrol(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.Replace, "replace", false, "give up an enrolment that's in the state folder already, once the new one is accepted")
	return cmd
}

// supervisorName is the command that the agent starts itself with, for a background job.
const supervisorName = "job-supervisor"

func newSupervisor() *cobra.Command {
	return &cobra.Command{
		Use:    supervisorName,
		Short:  "Run one background job; only the agent itself starts this",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return agent.SuperviseJob(cmd.Context(), os.Stdin, os.Stdout)
		},
	}
}

func newVersion() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if !asJSON {
				_, err := fmt.Fprintf(out, "drover-agent %s %s/%s, protocol %d\n", version, runtime.GOOS, runtime.GOARCH, protocol.Version)
				return err
			}
			b, err := json.Marshal(struct {
				Version  string `json:"version"`
				Protocol int    `json:"protocol"`
				OS       string `json:"os"`
				Arch     string `json:"arch"`
				Go       string `json:"go"`
			}{version, protocol.Version, runtime.GOOS, runtime.GOARCH, runtime.Version()})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(out, string(b))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (o *options) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.Server, "server", "", "the server's URL (default: the one of the enrolment)")
	f.StringVar(&o.State, "state", defaultState(), "the folder with this host's key and enrolment")
	f.StringVar(&o.Token, "token", "", "the enrolment token ("+tokenEnv+"); a file is safer, since others on the host see command lines")
	f.StringVar(&o.TokenFile, "token-file", "", "a file with the enrolment token")
	f.BoolVar(&o.Plaintext, "plaintext", false, "allow plain http to another machine: whoever is on the way reads every command and can send their own")
	f.StringVar(&o.CAFile, "ca-file", "", "a PEM file with the only certificate authorities to trust")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json; the log goes to stderr")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.IntVar(&o.tokenFD, "token-fd", -1, "an inherited descriptor to read the token from")
	_ = f.MarkHidden("token-fd") // it exists: it was made just above
}

// defaultState is where packages put it for root, and the user's own place otherwise.
func defaultState() string {
	if runtime.GOOS == "windows" {
		return filepath.Join(os.Getenv("ProgramData"), "drover-agent")
	}
	home, err := os.UserHomeDir()
	if os.Geteuid() == 0 || err != nil {
		return "/var/lib/drover-agent"
	}
	return filepath.Join(home, ".local", "state", "drover-agent")
}

// agent reads flags and environment and makes the agent. It doesn't return when the
// process has to be started anew to get a token out of sight.
func (o *options) agent(cmd *cobra.Command) (*agent.Agent, error) {
	if err := fromEnv(cmd.Flags()); err != nil {
		return nil, usage(cmd, err)
	}
	if err := o.takeToken(); err != nil {
		return nil, err
	}
	log, err := newLog(cmd.ErrOrStderr(), o.logFormat, o.logLevel)
	if err == nil {
		err = o.Check()
	}
	if err != nil {
		return nil, usage(cmd, err)
	}
	o.Version = version
	if o.Supervisor, err = agent.SelfSupervisor(supervisorName); err != nil {
		return nil, err
	}
	return agent.New(o.Config, log)
}

// fromEnv sets each flag that wasn't given from DROVER_NAME.
func fromEnv(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := "DROVER_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := os.Getenv(name)
		if f.Changed || value == "" || f.Name == "token" || f.Hidden || f.Name == "help" {
			return
		}
		values := []string{value}
		if f.Value.Type() == "stringArray" {
			values = filepath.SplitList(value)
		}
		for _, v := range values {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	return errors.Join(errs...)
}

// takeToken finds the token and sees to it that it stands neither in this process's
// environment nor in its command line, where commands that it runs could read it.
func (o *options) takeToken() error {
	if o.tokenFD >= 0 {
		f := os.NewFile(uintptr(o.tokenFD), "token")
		if f == nil {
			return errors.New("--token-fd isn't an open descriptor")
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, 4096))
		o.Token = strings.TrimSpace(string(b))
		return err
	}
	visible := o.Token
	if visible == "" {
		visible = os.Getenv(tokenEnv)
		if o.TokenFile == "" {
			o.Token = visible
		}
	}
	if visible == "" {
		return nil
	}
	if err := os.Unsetenv(tokenEnv); err != nil {
		return err
	}
	return startAnew(o.Token)
}

func newLog(w io.Writer, format, level string) (*slog.Logger, error) {
	var lv slog.Level
	if err := lv.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error")
	}
	opt := &slog.HandlerOptions{Level: lv}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opt)), nil
	}
	return nil, errors.New("--log-format must be text or json")
}
