package main

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

func (a *app) toolsCmd() *cobra.Command {
	w := &where{remote: true}
	var agent string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "tools", Short: "List the tools that a token may use", Args: noArgs,
		Long: `Lists the tools that the token may use with drover call: on one agent with --agent, which
leaves out what that agent doesn't offer, else on any that it reaches. --json has the
JSON schemas of their arguments and results, too.

EFFECT is what a tool does to a host at most: read_only, standard_change or normal_change.
Tools that move a file beside the call are used by drover cp, not by drover call.`,
		Example: `  drover tools
  drover tools --agent web-01
  drover tools --agent web-01 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.dial(w)
			if err != nil {
				return err
			}
			tools, err := usable(cmd.Context(), api, agent)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(a.out, restapi.ToolList{Tools: tools})
			}
			var rows [][]string
			for _, t := range tools {
				rows = append(rows, []string{t.Name, t.Effect, t.Title})
			}
			return table(a.out, []string{"TOOL", "EFFECT", "WHAT"}, rows)
		},
	}
	f := cmd.Flags()
	w.remoteFlags(f, defaultURL)
	f.StringVar(&agent, "agent", "", "only tools that the agent of this id offers")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// usable lists the tools that the client's credential may use: of those that an agent offers,
// or with "" of all.
func usable(ctx context.Context, api *client, agent string) ([]restapi.Tool, error) {
	var l restapi.ToolList
	if err := api.do(ctx, http.MethodGet, "/tools", nil, &l); err != nil {
		return nil, err
	}
	if agent == "" {
		return l.Tools, nil
	}
	var g restapi.AgentInfo
	if err := api.do(ctx, http.MethodGet, "/agents/"+url.PathEscape(agent), nil, &g); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(l.Tools, func(t restapi.Tool) bool { return !slices.Contains(g.Tools, t.Name) }), nil
}

// insteadOf says what the command line has instead of a tool of the server's own, which MCP
// clients alone have; "" of another name.
func insteadOf(tool string) string {
	switch tool {
	case "list_agents", "fleet_overview":
		return "drover agents list"
	case "select_agent":
		return "drover agents show ID"
	case "whoami":
		return "drover tools and drover agents list, which show what the token reaches (GET " + restapi.Prefix + "/whoami tells whose it is)"
	case "call_result":
		return "the call's own command with the same --idempotency-key, and GET " + restapi.Prefix + "/calls/ID"
	case "call_cancel":
		return "Ctrl-C in drover call, and POST " + restapi.Prefix + "/calls/ID/cancel"
	default:
		return ""
	}
}

// noSuchTool adds to unknown_tool what may have been meant: one of MCP's own tools, or one with
// a name like it, of those that the credential may use on that agent. Any other error stays.
func noSuchTool(ctx context.Context, api *client, agent, tool string, err error) error {
	fe := fleet.AsError(err)
	if fe.Code != protocol.CodeUnknownTool {
		return err
	}
	if instead := insteadOf(tool); instead != "" {
		return fleet.Wrap(fe.Code, err, "%s is a tool of the server's own, for MCP clients; the command line has %s instead", tool, instead)
	}
	tools, lerr := usable(ctx, api, agent)
	if fleet.AsError(lerr).Code == protocol.CodeUnknownAgent { // the tool is judged first: then as if none were named
		tools, lerr = usable(ctx, api, "")
	}
	if lerr != nil {
		return err
	}
	names := &cobra.Command{SuggestionsMinimumDistance: 2} // the library knows what's like what
	for _, t := range tools {
		names.AddCommand(&cobra.Command{Use: t.Name, Run: func(*cobra.Command, []string) {}})
	}
	like := names.SuggestionsFor(tool)
	if len(like) == 0 {
		return err
	}
	return fleet.Wrap(fe.Code, err, "%s (is it %s?)", fe.Message, text.Line(strings.Join(like, " or "), 300))
}
