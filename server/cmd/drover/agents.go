package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// command is an administrative command under way: where it works and how it answers.
type command struct {
	app   *app
	where *where
	json  bool
}

// manage makes an administrative command's common part.
func (a *app) manage(cmd *cobra.Command, run func(ctx context.Context, c *command, api *client, args []string) error) *cobra.Command {
	c := &command{app: a, where: a.admin(cmd)}
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.where.settle(cmd.Flags()); err != nil {
			return err
		}
		api, err := a.connect(cmd.Context(), c.where)
		if err != nil {
			return err
		}
		err = run(cmd.Context(), c, api, args)
		if cerr := api.close(); err == nil {
			err = cerr
		}
		return err
	}
	return cmd
}

// group is a command that only has subcommands; alone it prints its help.
func group(use, short, long string, sub ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Long: long, Args: onlyCommands, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	g.AddCommand(sub...)
	return g
}

func (a *app) agentsCmd() *cobra.Command {
	return group("agents", "List, show, label, purge and remove agents", `An agent is the Drover program on a host. Its id is what calls name; hostname and
everything else that a host says of itself is shown, and selects nothing.

To add a host: drover enroll create --agent-id ID`,
		a.agentsList(), a.agentsShow(), a.agentsSet(), a.agentsPurge(), a.agentsRemove())
}

func (a *app) agentsList() *cobra.Command {
	var query, labels, state string
	cmd := &cobra.Command{
		Use: "list", Short: "List agents", Args: noArgs,
		Long: `Lists the agents by id. On --data the state is unknown, and when they were seen last is up
to a minute old: only the running server knows who is online; ask it with --url.`,
		Example: `  drover agents list --url http://127.0.0.1:7400
  drover agents list --labels env=prod,role=web --state online
  drover agents list --json`,
	}
	cmd.Flags().StringVar(&query, "query", "", "text that the id, hostname, description or a label contains")
	cmd.Flags().StringVar(&labels, "labels", "", "k=v,k=v: agents that have all of these")
	cmd.Flags().StringVar(&state, "state", "", "online, offline or quarantined")
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		if state != "" && !c.where.remote {
			return fleet.Errorf(protocol.CodeBadArgs, "only a running server knows who is online: use --state with --url")
		}
		list, err := allAgents(ctx, api, url.Values{"query": {query}, "labels": {labels}, "state": {state}})
		if err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, list)
		}
		a.sayWhy(list.OfflineWhy)
		var rows [][]string
		for _, g := range list.Agents {
			rows = append(rows, []string{g.AgentID, g.State, g.Hostname, g.OS, g.RunAs, restapi.LabelsText(g.Labels), when(g.LastSeen), g.Description})
		}
		return table(a.out, []string{"AGENT", "STATE", "HOSTNAME", "OS", "RUN AS", "LABELS", "LAST SEEN", "DESCRIPTION"}, rows)
	})
}

// sayWhy says on standard error why agents that are shown as offline may be online, if so.
func (a *app) sayWhy(why string) {
	if why != "" {
		a.say("agents that are shown as offline may be online: %s", text.Line(why, 300))
	}
}

// allAgents reads every page, as one.
func allAgents(ctx context.Context, api *client, q url.Values) (restapi.AgentList, error) {
	out := restapi.AgentList{Agents: []restapi.AgentInfo{}}
	for k, v := range q {
		if v[0] == "" {
			q.Del(k)
		}
	}
	q.Set("limit", "200")
	for {
		var page restapi.AgentList
		if err := api.do(ctx, http.MethodGet, "/agents?"+q.Encode(), nil, &page); err != nil {
			return restapi.AgentList{}, err
		}
		out.Agents, out.OfflineWhy = append(out.Agents, page.Agents...), cmp.Or(out.OfflineWhy, page.OfflineWhy)
		out.Total = len(out.Agents)
		if page.NextCursor == "" {
			return out, nil
		}
		q.Set("cursor", page.NextCursor)
	}
}

func (a *app) agentsShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show ID", Short: "Show one agent", Args: oneArg("an agent id"), Example: "  drover agents show web-01"}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		var g restapi.AgentInfo
		if err := api.do(ctx, http.MethodGet, "/agents/"+url.PathEscape(args[0]), nil, &g); err != nil {
			return err
		}
		return a.printAgent(c, g)
	})
}

func (a *app) printAgent(c *command, g restapi.AgentInfo) error {
	if c.json {
		return printJSON(a.out, g)
	}
	a.sayWhy(g.OfflineWhy)
	roots := "not confined"
	if len(g.Roots) > 0 {
		roots = strings.Join(g.Roots, ", ")
	}
	system := "" // it tells when it first connects
	if g.OS != "" {
		system = strings.TrimSpace(g.OSVersion + " " + g.OS + "/" + g.Arch)
	}
	for _, l := range [][2]string{
		{"agent", g.AgentID}, {"state", g.State}, {"quarantine", g.Quarantine}, {"notice", g.Notice}, {"online since", when(g.Since)}, {"last seen", when(g.LastSeen)},
		{"hostname", g.Hostname}, {"system", system}, {"run as", g.RunAs},
		{"file tools", roots}, {"labels", restapi.LabelsText(g.Labels)}, {"description", g.Description}, {"offers", strings.Join(g.Tools, ", ")},
		{"agent version", g.AgentVersion}, {"clock", clockText(g.ClockAheadMS)}, {"key", fmt.Sprintf("%s (generation %d)", g.Fingerprint, g.Generation)}, {"created", when(g.CreatedAt)},
	} {
		if l[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.out, "%-14s %s\n", l[0], text.Line(l[1], 1000)); err != nil {
			return err
		}
	}
	return nil
}

// clockText says how far a host's clock is off, "" when it's by fleet.MaxSkew at most.
func clockText(aheadMS int64) string {
	d := time.Duration(aheadMS) * time.Millisecond
	switch {
	case d.Abs() <= fleet.MaxSkew:
		return ""
	case d < 0:
		return (-d).Round(time.Second).String() + " behind the server's"
	default:
		return d.Round(time.Second).String() + " ahead of the server's"
	}
}

func (a *app) agentsSet() *cobra.Command {
	var labels, unset []string
	var description string
	cmd := &cobra.Command{
		Use: "set ID", Short: "Set labels and description", Args: oneArg("an agent id"),
		Long: `Sets labels and the description of an agent. Labels that aren't named stay as they
are. Grants may select agents by label (drover pat create --selector env=prod), so a
label is a right: it comes from operators alone, never from a host.`,
		Example: `  drover agents set web-01 --label env=prod --label role=web --description "shop, do not restart by day"
  drover agents set web-01 --unset role`,
	}
	cmd.Flags().StringArrayVar(&labels, "label", nil, "set a label, k=v (repeatable)")
	cmd.Flags().StringArrayVar(&unset, "unset", nil, "remove the label of this key (repeatable)")
	cmd.Flags().StringVar(&description, "description", "", "what the host is for; \"\" removes it")
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		set, err := parseLabels(labels)
		if err != nil {
			return err
		}
		var change restapi.AgentChange
		if cmd.Flags().Changed("description") {
			change.Description = &description
		}
		path := "/agents/" + url.PathEscape(args[0])
		if len(set)+len(unset) > 0 {
			var now restapi.AgentInfo
			if err := api.do(ctx, http.MethodGet, path, nil, &now); err != nil {
				return err
			}
			change.Labels = merged(now.Labels, set, unset)
		}
		var g restapi.AgentInfo
		if err := api.change(ctx, http.MethodPatch, path, change, &g); err != nil {
			return err
		}
		return a.printAgent(c, g)
	})
}

// merged is never nil: an empty set of labels is a change too.
func merged(now, set map[string]string, unset []string) map[string]string {
	out := map[string]string{}
	for k, v := range now {
		out[k] = v
	}
	for _, k := range unset {
		delete(out, k)
	}
	for k, v := range set {
		out[k] = v
	}
	return out
}

func (a *app) agentsPurge() *cobra.Command {
	cmd := &cobra.Command{
		Use: "purge ID", Short: "Take back the calls queued for an agent", Args: oneArg("an agent id"),
		Long: `Takes back every call that waits for the agent to connect (drover call --queue-for), whoever
made it; none of them runs. Calls that were sent go on, and so does the server's own order to end the
jobs of a revoked token. The running server has the queue, so
this needs --url.`,
		Example: "  drover agents purge web-01 --url http://127.0.0.1:7400",
	}
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		var p restapi.Purged
		if err := api.change(ctx, http.MethodPost, "/agents/"+url.PathEscape(args[0])+"/purge", nil, &p); err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, p)
		}
		return a.done(c, fmt.Sprintf("took back %d queued calls of %s", p.Cancelled, args[0]))
	})
}

// confirmed asks whoever sits at a terminal to type what can't be undone. Where nobody does,
// in a script, the command itself is the decision.
func (a *app) confirmed(what, word string) error {
	if !a.inTTY || !a.errTTY {
		return nil
	}
	fmt.Fprintf(a.err, "%s Type %s to go on: ", what, text.Line(word, 100))
	line, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != word {
		return fleet.Errorf(protocol.CodeCancelled, "nothing was changed; --yes does it without asking")
	}
	return nil
}

func (a *app) agentsRemove() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "remove ID", Short: "Remove an agent for ever", Args: oneArg("an agent id"),
		Long: `Removes an agent: its key is refused from now on, what runs on it is ended, and its
id is never given out again. What it did stays in the record. On the host, stop and
uninstall drover-agent by yourself.

To give a reinstalled host a new key under the same id, use
drover enroll create --agent-id ID --replace instead.

On a terminal it asks first; --yes doesn't. In a script, where standard input or standard
error is no terminal, it never asks.`,
		Example: "  drover agents remove web-01",
	}
	cmd.Flags().BoolVar(&sure, "yes", false, "don't ask")
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, args []string) error {
		if !sure {
			if err := a.confirmed("This removes the agent for ever: its key is refused and its id never given out again.", args[0]); err != nil {
				return err
			}
		}
		if err := api.change(ctx, http.MethodDelete, "/agents/"+url.PathEscape(args[0]), nil, nil); err != nil {
			return err
		}
		return a.done(c, "removed "+args[0])
	})
}

// done confirms on standard error, or as JSON.
func (a *app) done(c *command, msg string) error {
	if c.json {
		return printJSON(a.out, map[string]bool{"ok": true})
	}
	a.say("%s", text.Line(msg, 200))
	return nil
}

func grantText(g restapi.Grant) (agents, tools string) {
	set := fleet.AgentSet{All: g.Agents.All, Selector: g.Agents.Selector}
	for _, id := range g.Agents.IDs {
		set.IDs = append(set.IDs, fleet.AgentID(id))
	}
	return authn.AgentsText(set), authn.ToolsText(fleet.ToolSet{All: g.Tools.All, Names: g.Tools.Names})
}
