package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

func (a *app) auditCmd() *cobra.Command {
	return group("audit", "Read the record", "The record is append-only: what was to be done, before it was sent; how it ended, before it was answered;\nwhat was learnt later of a call whose end wasn't known; what was refused; and what administrators changed.", a.auditList())
}

func (a *app) auditList() *cobra.Command {
	var kind, agent, call string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List the record, the newest first", Args: noArgs,
		Example: `  drover audit list
  drover audit list --agent-id web-01 --limit 200
  drover audit list --kind refusal --json`,
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", "", "intent, sent, outcome, evidence, cancel, refusal or admin")
	f.StringVar(&agent, "agent-id", "", "only rows about this agent")
	f.StringVar(&call, "call-id", "", "only rows about this call")
	f.IntVar(&limit, "limit", 50, "how many rows")
	return a.manage(cmd, func(ctx context.Context, c *command, api *client, _ []string) error {
		if limit < 1 {
			return fleet.Errorf(protocol.CodeBadArgs, "--limit must be at least 1")
		}
		rows, err := auditRows(ctx, api, limit, url.Values{"kind": {kind}, "agent_id": {agent}, "call_id": {call}})
		if err != nil {
			return err
		}
		if c.json {
			return printJSON(a.out, restapi.AuditList{Rows: rows})
		}
		var lines [][]string
		for _, r := range rows {
			at, _ := time.Parse(time.RFC3339, r.At)
			lines = append(lines, []string{when(at), r.Kind, r.Principal, r.AgentID, r.CallID, summarize(r.Body)})
		}
		return table(a.out, []string{"AT", "KIND", "PRINCIPAL", "AGENT", "CALL", "WHAT"}, lines)
	})
}

// auditRows reads as many pages as limit needs.
func auditRows(ctx context.Context, api *client, limit int, q url.Values) ([]restapi.AuditRow, error) {
	for k, v := range q {
		if v[0] == "" {
			q.Del(k)
		}
	}
	out := []restapi.AuditRow{}
	for len(out) < limit {
		q.Set("limit", strconv.Itoa(min(200, limit-len(out))))
		var page restapi.AuditList
		if err := api.do(ctx, http.MethodGet, "/audit?"+q.Encode(), nil, &page); err != nil {
			return nil, err
		}
		out = append(out, page.Rows...)
		if page.NextCursor == "" {
			break
		}
		q.Set("cursor", page.NextCursor)
	}
	return out, nil
}

// summarize says in a few words what a row is about.
func summarize(body jsontext.Value) string {
	var b struct {
		Tool   string         `json:"tool"`
		Args   jsontext.Value `json:"args"`
		State  string         `json:"state"`
		Code   string         `json:"code"`
		Reason string         `json:"reason"`
		Action string         `json:"action"`
		Object string         `json:"object"`
		Count  int            `json:"count"`
		Text   string         `json:"text"`        // evidence
		Until  string         `json:"queue_until"` // of a queued call's intent
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return ""
	}
	var parts []string
	for _, p := range []string{b.Action, b.Object, b.State, b.Code, b.Reason, b.Text, b.Tool, string(b.Args)} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if b.Until != "" {
		parts = append([]string{"queued"}, parts...)
	}
	if b.Count > 1 {
		parts = append(parts, "×"+strconv.Itoa(b.Count))
	}
	return strings.Join(parts, " ")
}
