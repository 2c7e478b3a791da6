package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

func (a *app) patCmd() *cobra.Command {
	return group("pat", "Create, list and revoke personal access tokens", `A personal access token (PAT) is what Claude, scripts and you show to the server. It
has a grant: the agents that it reaches and the tools that it may use there. Neither
has a default. Calls are recorded under the token's id and name, so make one for each
program and person.`, a.patCreate(), a.patList(), a.patRevoke())
}

func (a *app) patCreate() *cobra.Command {
	var name, agents, selector, tools, expires string
	var admin bool
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token; prints it, this once", Args: noArgs,
		Long: `Creates a token and prints it, alone, on standard output. The server keeps only its
hash: store it now.

Agents: --agents all, --agents ID,ID, or --selector k=v,k=v (agents that have all of
these labels, now and later). An id may be one that's enrolled later; that there's none
now is said. Tools: --tools all, or groups and names.
Groups and names: ` + strings.Join(toolWords(), ", ") + `.

--admin also lets the token manage Drover: tokens, enrolment, labels, removal, and read
everybody's calls. It adds no tools.`,
		Example: `  drover pat create --name claude-lab --selector env=lab --tools all
  drover pat create --name claude-prod --agents all --tools fs_read,fs_list,diag --expires 30d
  export DROVER_PAT=$(drover pat create --name me --agents all --tools all --admin)`,
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "what people know it by (required)")
	f.StringVar(&agents, "agents", "", "all, or agent ids: ID,ID")
	f.StringVar(&selector, "selector", "", "labels that the agents have: k=v,k=v")
	f.StringVar(&tools, "tools", "", "all, or tools and groups: fs,diag_system")
	f.BoolVar(&admin, "admin", false, "may also manage Drover and read all calls")
	f.StringVar(&expires, "expires", "90d", "how long it lives: 30d, 12h, never")
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		req, err := patRequest(name, agents, selector, tools, expires)
		if err != nil {
			return err
		}
		req.Admin = admin
		var pat restapi.NewPAT
		if err := api.change(ctx, http.MethodPost, "/pats", req, &pat); err != nil {
			return err
		}
		a.warnOfNone(ctx, api, req.Grant.Agents.IDs)
		if c.json {
			return printJSON(a.out, pat)
		}
		_, err = fmt.Fprintln(a.out, pat.Token)
		return err
	})
}

// warnOfNone names the ids that no agent has: to be enrolled yet, or mistyped.
func (a *app) warnOfNone(ctx context.Context, api *client, ids []string) {
	for _, id := range ids {
		err := api.do(ctx, http.MethodGet, "/agents/"+url.PathEscape(id), nil, nil)
		if fleet.AsError(err).Code == protocol.CodeUnknownAgent {
			a.say("drover: warning: there's no agent %s now; the token reaches it only once it's enrolled under exactly this id (drover agents list shows the ids)", text.Line(id, 64))
		}
	}
}

// patRequest reads the flags of pat create. What is missing is explained, not guessed.
func patRequest(name, agents, selector, tools, expires string) (restapi.PATRequest, error) {
	req := restapi.PATRequest{Name: name}
	bad := func(msg string) (restapi.PATRequest, error) {
		return req, fleet.Errorf(protocol.CodeBadArgs, "%s", msg)
	}
	switch {
	case name == "":
		return bad("give the token a name: --name claude-lab; calls are recorded under it")
	case agents == "" && selector == "":
		return bad("say which agents the token reaches: --agents all, --agents ID,ID, or --selector k=v; there is no default, so that no token reaches more than was meant")
	case agents != "" && selector != "":
		return bad("give --agents or --selector, not both")
	case tools == "":
		return bad("say which tools the token may use: --tools all, or some of " + strings.Join(toolWords(), ",") + "; there is no default")
	}
	switch {
	case agents == "all":
		req.Grant.Agents.All = true
	case agents != "":
		req.Grant.Agents.IDs = splitList(agents)
	default:
		labels, err := restapi.ParseLabels(selector)
		if err != nil {
			return req, err
		}
		req.Grant.Agents.Selector = labels
	}
	if tools == "all" {
		req.Grant.Tools.All = true
	} else {
		req.Grant.Tools.Names = splitList(tools)
	}
	life, never, err := parseLife(expires)
	if req.NeverExpires = never; !never {
		req.TTLSeconds = new(int64(life.Seconds()))
	}
	return req, err
}

// toolWords lists what --tools takes: groups, then names.
func toolWords() []string {
	var groups, names []string
	for _, d := range capability.All() {
		names = append(names, d.Name)
		if !slices.Contains(groups, d.Group()) {
			groups = append(groups, d.Group())
		}
	}
	return append(groups, names...)
}

func (a *app) patList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List tokens (never their text)", Args: noArgs, Example: "  drover pat list --json"}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		var l restapi.PATList
		if err := api.do(ctx, http.MethodGet, "/pats", nil, &l); err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, l)
		}
		var rows [][]string
		for _, p := range l.PATs {
			agents, tools := grantText(p.Grant)
			expires := when(p.ExpiresAt)
			if p.ExpiresAt.IsZero() {
				expires = "never"
			}
			rows = append(rows, []string{p.ID, p.Name, p.State, yes(p.Admin), agents, tools, expires, when(p.LastUsedAt)})
		}
		return table(a.out, []string{"ID", "NAME", "STATE", "ADMIN", "AGENTS", "TOOLS", "EXPIRES", "LAST USED"}, rows)
	})
}

func (a *app) patRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Revoke a token at once", Args: oneArg("a token's id (drover pat list shows them)"),
		Long:    "Revokes a token: it's refused from now on, and within five seconds everything that runs with it is ended.",
		Example: "  drover pat revoke 7f3a9c41",
	}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		if err := api.change(ctx, http.MethodDelete, "/pats/"+url.PathEscape(args[0]), nil, nil); err != nil {
			return err
		}
		return a.done(c, "revoked "+args[0])
	})
}
