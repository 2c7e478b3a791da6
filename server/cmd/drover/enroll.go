package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/server/internal/callargs"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

func (a *app) enrollCmd() *cobra.Command {
	return group("enroll", "Let a host become an agent", `A host becomes an agent with an enrolment token: a right to register one key, made on
that host, under the id that you choose, once. The token also carries the fingerprint
of the server's key, so that the very first contact is verified.`,
		a.enrollCreate(), a.enrollList(), a.enrollRevoke())
}

func (a *app) enrollCreate() *cobra.Command {
	var id, ttl string
	var labels []string
	var replace bool
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token; prints it, this once", Args: noArgs,
		Long: `Creates an enrolment token and prints it, alone, on standard output, and the line to
paste on the host on standard error.

--replace gives an agent that exists a new key, for a host that was reinstalled: same
id, next generation; its old key is void once the token is used, and so is every other
token for it. On a host that still has its state folder, drover-agent enroll --replace
uses the token; drover-agent run doesn't. Its labels stay, unless --label gives some: then it has those alone.`,
		Example: `  drover enroll create --agent-id web-01 --label env=prod
  drover enroll create --agent-id web-01 --replace --ttl 1h
  drover enroll create --agent-id web-01 2>/dev/null | ssh web-01 'cat > token'`,
	}
	f := cmd.Flags()
	f.StringVar(&id, "agent-id", "", "the id that calls will name: a-z, 0-9 and '-', at most 63 characters (required)")
	f.StringArrayVar(&labels, "label", nil, "a label of the agent, k=v (repeatable); with --replace they take the place of all that it has")
	f.StringVar(&ttl, "ttl", "24h", "how long the token can be used: 1h, 7d")
	f.BoolVar(&replace, "replace", false, "give the agent of this id a new key")
	var w *where
	cmd = a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		w = c.where
		if id == "" {
			return fleet.Errorf(protocol.CodeBadArgs, "name the agent: --agent-id web-01; it's what every call to this host will name")
		}
		life, never, err := parseLife(ttl)
		if err != nil || never {
			return fleet.Errorf(protocol.CodeBadArgs, "--ttl is written 30m, 24h or 7d; an enrolment token always expires")
		}
		set, err := parseLabels(labels)
		if err != nil {
			return err
		}
		var e restapi.NewEnrolment
		req := restapi.EnrolmentRequest{AgentID: id, Labels: set, TTLSeconds: new(int64(life.Seconds())), Replace: replace}
		if err := api.change(ctx, http.MethodPost, "/enrolments", req, &e); err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, e)
		}
		a.sayHow(w, e)
		_, err = fmt.Fprintln(a.out, e.Token)
		return err
	})
	return cmd
}

// sayHow says what to do with a token on its host.
func (a *app) sayHow(w *where, e restapi.NewEnrolment) {
	verb, who, then := "run", "", ""
	if e.Replace { // an agent that's enrolled already uses no token when it's run
		verb, who = "enroll --replace", ", as its agent's user and with its agent's --state"
		then = "\nThen start its agent again. Where no state folder is left, drover-agent run with this token enrols, too.\n"
	}
	args, target := a.pasteArgs(w, verb)
	line, windows := fmt.Sprintf("DROVER_ENROLL_TOKEN=%s %s %s", e.Token, agentWord(target), args), ""
	if !e.Replace && thisMachineAlone(target) == "" {
		windows = fmt.Sprintf("\nIn PowerShell, where that host has Windows:\n\n  $env:DROVER_ENROLL_TOKEN=\"%s\"; .\\drover-agent.exe %s\n", e.Token, args)
	}
	a.say("On the host that becomes %s%s, until %s (once):\n\n  %s\n%s%s", e.AgentID, who, when(e.ExpiresAt), line, windows, then)
	if alone := thisMachineAlone(target); alone != "" {
		a.say("%s", alone)
	}
}

// pasteArgs are the arguments that make a host an agent, and the server's URL in them: what
// the command knows of that.
func (a *app) pasteArgs(w *where, verb string) (args, target string) {
	target, known := "http://SERVER:7400", ""
	switch {
	case w.remote:
		known = strings.TrimSuffix(w.url, "/")
	case a.getenv("DROVER_PUBLIC_URL") != "":
		known = strings.TrimSuffix(a.getenv("DROVER_PUBLIC_URL"), "/")
	default: // what the server on this data said when it started
		b, _ := os.ReadFile(filepath.Join(w.data, server.URLFile))
		known = strings.TrimSpace(string(b))
	}
	flags := "" // run has a folder that its user can use
	if verb != "run" {
		flags = " --state /var/lib/drover-agent"
	}
	if known != "" {
		target = known
		if u, err := url.Parse(known); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
			flags += " --plaintext"
		}
	}
	return fmt.Sprintf("%s --server %s%s", verb, target, flags), target
}

// enrollCommand is what makes an enrolment token on the machine of the server with these data,
// in any folder there. It holds no password.
func enrollCommand(w *where) string {
	program := "drover"
	if self, err := os.Executable(); err == nil && strings.ContainsRune(os.Args[0], filepath.Separator) {
		program = self // it isn't where the shell looks, or nobody knows
	}
	line := callargs.Word(program) + " enroll create --data " + callargs.Word(absolutePath(w.data))
	if w.databaseURL != "" {
		line += " --database-url " + databaseWord(w.databaseURL)
	}
	if w.keyFile != "" {
		line += " --server-key " + callargs.Word(absolutePath(w.keyFile))
	}
	return line
}

// databaseWord is the database's URL for a shell's command line. One that has, or may have, a
// password in it is taken from the environment, and the shell says so where it isn't there.
func databaseWord(databaseURL string) string {
	const fromEnvironment = `"${DROVER_DATABASE_URL:?set it as the server has it}"`
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return fromEnvironment
	}
	if _, secret := u.User.Password(); secret {
		return fromEnvironment
	}
	for k := range u.Query() {
		if strings.Contains(strings.ToLower(k), "pass") {
			return fromEnvironment
		}
	}
	return callargs.Word(databaseURL)
}

// thisMachineAlone says of a loopback address that no other machine reaches the server there;
// "" of another address.
func thisMachineAlone(base string) string {
	if !loopbackURL(base) {
		return ""
	}
	return fmt.Sprintf("%s is this machine alone. For another one run drover serve with --public-url https://NAME,\nbehind TLS (docs/deploy.md): the line for the host then has that name.\n", base)
}

func (a *app) enrollList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List enrolment tokens (never their text)", Args: noArgs, Example: "  drover enroll list"}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		var l restapi.EnrolmentList
		if err := api.do(ctx, http.MethodGet, "/enrolments", nil, &l); err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, l)
		}
		var rows [][]string
		for _, e := range l.Enrolments {
			rows = append(rows, []string{e.ID, e.AgentID, e.State, yes(e.Replace), restapi.LabelsText(e.Labels), when(e.ExpiresAt), e.CreatedBy})
		}
		return table(a.out, []string{"ID", "AGENT", "STATE", "REPLACE", "LABELS", "EXPIRES", "CREATED BY"}, rows)
	})
}

func (a *app) enrollRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token that wasn't used", Args: oneArg("a token's id (drover enroll list shows them)"),
		Long:    "Revokes an enrolment token that wasn't used. A host that has enrolled stays: drover agents remove ends that.",
		Example: "  drover enroll revoke AZ9q0m3Xf1uKc7yW2b5e8g",
	}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		if err := api.change(ctx, http.MethodDelete, "/enrolments/"+url.PathEscape(args[0]), nil, nil); err != nil {
			return err
		}
		return a.done(c, "revoked "+text.Line(args[0], 64))
	})
}
