package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// envKey is the annotation that names a flag's environment variable.
const envKey = "drover_env"

// env gives a flag an environment variable, and says so in its help.
func env(fs *pflag.FlagSet, flag, name string) {
	f := fs.Lookup(flag)
	f.Usage += " (env " + name + ")"
	f.Annotations = map[string][]string{envKey: {name}}
}

// fromEnv sets the flags that weren't given from their environment variables.
func (a *app) fromEnv(cmd *cobra.Command, _ []string) error {
	var failed error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names := f.Annotations[envKey]
		if len(names) == 0 || f.Changed || failed != nil {
			return
		}
		if v := a.getenv(names[0]); v != "" {
			if err := f.Value.Set(v); err != nil {
				failed = fleet.Errorf(protocol.CodeBadArgs, "the environment variable %s: %v", names[0], err)
			}
		}
	})
	return failed
}

// where is the server that a command talks to: a running one by URL, or its data.
type where struct {
	data, databaseURL string
	keyFile           string // "" for the one in the data folder
	url, token        string
	given             *pflag.FlagSet // the command's flags, of which token may be one
	local             bool           // --data or --database-url was given on the command line
	remote            bool           // --url was
}

// defaultURL is the server of commands that always ask a running one: this machine's.
const defaultURL = "http://127.0.0.1:7400"

func (w *where) remoteFlags(fs *pflag.FlagSet, fallback string) {
	fs.StringVar(&w.url, "url", fallback, "the server's URL")
	env(fs, "url", "DROVER_URL")
	fs.StringVar(&w.token, "token", "", "a personal access token; better given by the environment, where other users don't see it")
	env(fs, "token", "DROVER_PAT")
	fs.Lookup("token").DefValue = ""
	w.given = fs
}

// tokenFrom tells where the user gave the token; "" of one that the user didn't give.
func (w *where) tokenFrom() string {
	switch {
	case w.given == nil:
		return ""
	case w.given.Changed("token"):
		return "--token"
	default:
		return "DROVER_PAT"
	}
}

func (w *where) localFlags(fs *pflag.FlagSet, getenv func(string) string) {
	fs.StringVar(&w.data, "data", defaultData(getenv), "the server's data folder")
	env(fs, "data", "DROVER_DATA")
	fs.StringVar(&w.databaseURL, "database-url", "", "postgres://… instead of SQLite in the data folder")
	env(fs, "database-url", "DROVER_DATABASE_URL")
	fs.StringVar(&w.keyFile, "server-key", "", "the file with the server's key; server.key in the data folder by default")
	env(fs, "server-key", "DROVER_SERVER_KEY")
}

// serverKey is the file with the server's key.
func (w *where) serverKey() string {
	if w.keyFile != "" {
		return w.keyFile
	}
	return filepath.Join(w.data, enroll.KeyFile)
}

// admin adds the flags of commands that manage Drover: on its data, beside a running
// server, or over its API.
func (a *app) admin(cmd *cobra.Command) *where {
	w := &where{}
	w.localFlags(cmd.Flags(), a.getenv)
	w.remoteFlags(cmd.Flags(), "")
	return w
}

// settle decides between data and URL: a flag before an environment variable, the data
// where nothing is given.
func (w *where) settle(fs *pflag.FlagSet) error {
	w.local = fs.Changed("data") || fs.Changed("database-url")
	w.remote = fs.Changed("url")
	if w.local && w.remote {
		return fleet.Errorf(protocol.CodeBadArgs, "give --data (or --database-url) to work on the server's data, or --url to ask a running server; not both")
	}
	if !w.local && w.url != "" {
		w.remote = true
	}
	return nil
}

// defaultData is where a server keeps its data when nothing is said.
func defaultData(getenv func(string) string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/drover"
	}
	if dir := getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "drover")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "drover")
	}
	return "drover-data"
}

// parseLife reads a token's life: 30d, 12h, 90m, or never (0 with never true).
func parseLife(s string) (life time.Duration, never bool, err error) {
	bad := fleet.Errorf(protocol.CodeBadArgs, "a time is written 30d, 12h or 90m")
	if s == "never" {
		return 0, true, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 36500 {
			return 0, false, bad
		}
		return time.Duration(n) * 24 * time.Hour, false, nil
	}
	life, err = time.ParseDuration(s)
	if err != nil || life < time.Second {
		return 0, false, bad
	}
	return life, false, nil
}

// parseLabel reads one k=v.
func parseLabel(s string) (k, v string, err error) {
	k, v, ok := strings.Cut(s, "=")
	if !ok || !fleet.ValidLabel(k, v) {
		return "", "", fleet.Errorf(protocol.CodeBadArgs, "a label is written key=value: keys of a-z, 0-9, '.', '_', '-', '/'; values without commas")
	}
	return k, v, nil
}

// parseLabels reads k=v arguments, none of them twice.
func parseLabels(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range list {
		k, v, err := parseLabel(s)
		if err != nil {
			return nil, err
		}
		if _, twice := out[k]; twice {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "the label %s is given twice", k)
		}
		out[k] = v
	}
	return out, nil
}

// splitList reads A,B,C without blanks and empty parts.
func splitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// onlyCommands refuses the name of a command that isn't there, and says which are like it.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	like := ""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		like = " (is it " + strings.Join(names, " or ") + "?)"
	}
	return &exit{code: exitUsage, cause: fmt.Errorf("bad_args: there's no command %s %s%s; see %s --help", cmd.CommandPath(), text.Quote(args[0], 40), like, cmd.CommandPath())}
}

// onlyKnown lets what the library adds, help and completion, refuse what isn't there, as our own
// commands do.
func onlyKnown(root *cobra.Command, args []string) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
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

// noArgs refuses arguments that aren't flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return &exit{code: exitUsage, cause: fmt.Errorf("bad_args: %s takes no arguments, only flags; %s is one; see %s --help", cmd.CommandPath(), text.Quote(args[0], 40), cmd.CommandPath())}
}

// oneArg wants exactly one argument, and says which.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return &exit{code: exitUsage, cause: fmt.Errorf("bad_args: %s needs %s; see %s --help", cmd.CommandPath(), what, cmd.CommandPath())}
		}
		return nil
	}
}

// once is a flag that may be given a single time: of two hosts the last would win.
type once string

// String implements pflag.Value.
func (o *once) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *once) Type() string { return "string" }

// Set implements pflag.Value.
func (o *once) Set(v string) error {
	if *o != "" {
		return errors.New("it was given already; a call runs on one agent")
	}
	*o = once(v)
	return nil
}
