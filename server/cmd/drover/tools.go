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
	"github.com/drover-fleet/drover/server/internal/callargs"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

func (a *app) toolsCmd() *cobra.Command {
	w := &where{remote: true}
	var agent string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "tools [NAME]", Short: "List the tools that a token may use, or show one", Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return oneArg("one tool's name at most")(cmd, args)
			}
			return nil
		},
		Long: `Lists the tools that the token may use with drover call: on one agent with --agent, which
leaves out what that agent doesn't offer, else on any that it reaches. With a tool's name
it shows that one: its arguments, and a line that calls it. --json has the JSON schemas of
arguments and results, too.

EFFECT is what a tool does to a host at most: read_only, standard_change or normal_change.
Tools that move a file beside the call are used by drover cp, not by drover call.`,
		Example: `  drover tools
  drover tools --agent web-01
  drover tools --agent web-01 shell_exec`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.dial(w)
			if err != nil {
				return err
			}
			tools, err := usable(cmd.Context(), api, agent)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				i := slices.IndexFunc(tools, func(t restapi.Tool) bool { return t.Name == args[0] })
				if i < 0 {
					return noSuchTool(cmd.Context(), api, agent, args[0], fleet.Errorf(protocol.CodeUnknownTool, "there's no tool %s that this token may use here", text.Quote(args[0], 64)))
				}
				tools = tools[i : i+1]
			}
			if asJSON {
				return printJSON(a.out, restapi.ToolList{Tools: tools})
			}
			if len(args) == 1 {
				t := tools[0]
				return callargs.Describe(a.out, callargs.Tool{Name: t.Name, Title: t.Title, Description: t.Description, Effect: t.Effect, Stream: t.Stream, InputSchema: t.InputSchema}, agent)
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

// noSuchTool adds to unknown_tool what may have been meant: one of MCP's own tools, or one with
// a name like it, of those that the credential may use on that agent. Any other error stays.
func noSuchTool(ctx context.Context, api *client, agent, tool string, err error) error {
	fe := fleet.AsError(err)
	if fe.Code != protocol.CodeUnknownTool {
		return err
	}
	if instead := callargs.InsteadOf(tool, restapi.Prefix); instead != "" {
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
