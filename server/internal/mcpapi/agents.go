package mcpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Limits of list_agents: a page of 200 agents, and of 38 KB, so that a model's window
// isn't filled by long descriptions.
const (
	listDefault  = 100
	listMax      = 200
	listMaxBytes = 38_000
)

// The states of an agent in lists.
const (
	stateOnline      = "online"
	stateOffline     = "offline"
	stateQuarantined = "quarantined"
)

type listIn struct {
	Query  string            `json:"query,omitempty" jsonschema:"Text to find in id, hostname, system, user, labels or description, in any case."`
	Labels map[string]string `json:"labels,omitempty" jsonschema:"Labels that an agent must all have, with these values."`
	State  *string           `json:"state,omitempty" jsonschema:"Only agents in this state."`
	Limit  *int              `json:"limit,omitempty" jsonschema:"At most this many agents; 100 when absent."`
	Cursor string            `json:"cursor,omitempty" jsonschema:"next_cursor of the answer before, to go on after it."`
}

func listBounds(s *jsonschema.Schema) {
	s.Properties["query"].MaxLength = ptr(256)
	s.Properties["state"].Enum = []any{stateOnline, stateOffline, stateQuarantined}
	s.Properties["limit"].Minimum, s.Properties["limit"].Maximum = ptr(1.0), ptr(float64(listMax))
	s.Properties["cursor"].MaxLength = ptr(63)
}

// agentRow is an agent in lists. What the host says of itself is hostile text, made
// visible and cut.
type agentRow struct {
	AgentID     fleet.AgentID     `json:"agent_id" jsonschema:"The id to name in calls."`
	State       string            `json:"state" jsonschema:"online, offline or quarantined."`
	Hostname    string            `json:"hostname,omitempty" jsonschema:"What the host calls itself; not an id."`
	OS          string            `json:"os,omitempty" jsonschema:"linux, darwin, windows …"`
	RunAs       string            `json:"run_as,omitempty" jsonschema:"The user that commands run as."`
	Labels      map[string]string `json:"labels,omitempty" jsonschema:"The operator's labels."`
	Description string            `json:"description,omitempty" jsonschema:"The operator's description."`
	LastSeen    string            `json:"last_seen,omitempty" jsonschema:"When an agent that isn't online was seen last, RFC 3339, UTC."`
	ClockAhead  int64             `json:"clock_ahead_seconds,omitzero" jsonschema:"How far its clock is ahead of the server's, in seconds; negative: behind. Absent up to a minute."`
}

type listOut struct {
	Agents     []agentRow `json:"agents" jsonschema:"The agents, by agent_id."`
	Total      int        `json:"total" jsonschema:"How many agents fit, on all pages."`
	NextCursor string     `json:"next_cursor,omitempty" jsonschema:"Give it as cursor for the next page; absent on the last."`
	OfflineWhy string     `json:"offline_why,omitempty" jsonschema:"Why agents that are shown as offline may be online; absent when nothing is wrong."`
}

func stateOf(a dispatch.AgentView) string {
	switch {
	case a.Quarantined != "":
		return stateQuarantined
	case a.Online:
		return stateOnline
	default:
		return stateOffline
	}
}

func rowOf(a dispatch.AgentView) agentRow {
	r := agentRow{
		AgentID: a.ID, State: stateOf(a), Hostname: text.Line(a.Facts.Hostname, 64), OS: text.Line(a.Facts.OS, 32),
		RunAs: text.Line(a.Facts.RunAs, 64), Labels: a.Labels, Description: text.Line(a.Description, 200), ClockAhead: int64(a.ClockAhead() / time.Second),
	}
	if r.State != stateOnline && !a.LastSeen.IsZero() {
		r.LastSeen = a.LastSeen.UTC().Format(time.RFC3339)
	}
	return r
}

// matches tells whether an agent fits the filters. query is in lower case.
func (in listIn) matches(r agentRow, query string) bool {
	if in.State != nil && *in.State != r.State {
		return false
	}
	for k, v := range in.Labels {
		if got, ok := r.Labels[k]; !ok || got != v {
			return false
		}
	}
	if query == "" {
		return true
	}
	for _, s := range []string{string(r.AgentID), r.Hostname, r.OS, r.RunAs, r.Description} {
		if strings.Contains(strings.ToLower(s), query) {
			return true
		}
	}
	for k, v := range r.Labels {
		if strings.Contains(strings.ToLower(k+"="+v), query) {
			return true
		}
	}
	return false
}

func (a *API) listAgents(_ context.Context, by use, in listIn) (any, error) {
	if in.Limit == nil {
		in.Limit = ptr(listDefault)
	}
	query := strings.ToLower(strings.TrimSpace(in.Query))
	agents := a.fleet.Agents(by.who)
	if err := dispatch.CheckCursor(agents, in.Cursor); err != nil {
		return nil, err
	}
	out := listOut{Agents: []agentRow{}, OfflineWhy: a.fleet.OfflineWhy()}
	size, full := 0, false
	for _, agent := range agents {
		row := rowOf(agent)
		if !in.matches(row, query) {
			continue
		}
		out.Total++
		if full || in.Cursor != "" && string(row.AgentID) <= in.Cursor {
			continue
		}
		b, err := json.Marshal(row)
		if err != nil {
			return nil, fmt.Errorf("an agent's row: %w", err)
		}
		if len(out.Agents) == *in.Limit || len(out.Agents) > 0 && size+len(b) > listMaxBytes {
			full = true
			out.NextCursor = string(out.Agents[len(out.Agents)-1].AgentID)
			continue
		}
		out.Agents, size = append(out.Agents, row), size+len(b)+1
	}
	return out, nil
}

type selectIn struct {
	AgentID string `json:"agent_id" jsonschema:"The exact id of the agent to check."`
}

type selectOut struct {
	agentRow
	Tools []string `json:"tools" jsonschema:"The tools that it offers and this credential may use."`
	Note  string   `json:"note" jsonschema:"What this answer means."`
}

func (a *API) selectAgent(_ context.Context, by use, in selectIn) (any, error) {
	if strings.TrimSpace(in.AgentID) == "" {
		return nil, fleet.Errorf(protocol.CodeNoAgent, "agent_id is required: the exact id of one agent; list_agents shows the ids")
	}
	view, err := a.fleet.Agent(by.who, in.AgentID, edgeName)
	if err != nil {
		return nil, err
	}
	out := selectOut{agentRow: rowOf(view), Tools: []string{}}
	for _, name := range a.toolsFor(by.who) {
		if view.Offers(name) > 0 {
			out.Tools = append(out.Tools, name)
		}
	}
	out.Note = fmt.Sprintf(`Nothing was selected: Drover keeps no current host. Put "agent_id":"%s" into every call that is meant for it.`, view.ID)
	if out.ClockAhead != 0 {
		out.Note = fmt.Sprintf("Its clock is %s the server's: times in its logs and files are off by that. ", clockText(out.ClockAhead)) + out.Note
	}
	switch out.State {
	case stateOffline:
		if len(view.Capabilities) == 0 {
			out.Note = "It has never connected: what it offers isn't known yet. " + out.Note
		}
		out.Note = "It is offline: calls to it fail at once and nothing is sent, unless they have queue_for_seconds. " + out.Note
		if why := view.OfflineWhy; why != "" {
			out.Note = "It may be online: " + why + ". " + out.Note
		}
	case stateQuarantined:
		out.Note = "It is in quarantine (" + text.Line(view.Quarantined, 200) + "): an operator has to look at it. " + out.Note
	}
	return out, nil
}

// clockText says how far a clock is off.
func clockText(ahead int64) string {
	if ahead < 0 {
		return (time.Duration(-ahead) * time.Second).String() + " behind"
	}
	return (time.Duration(ahead) * time.Second).String() + " ahead of"
}

type count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

type away struct {
	AgentID  fleet.AgentID `json:"agent_id"`
	State    string        `json:"state" jsonschema:"offline or quarantined."`
	LastSeen string        `json:"last_seen,omitempty" jsonschema:"RFC 3339, UTC; absent if it has never connected."`
}

type clock struct {
	AgentID    fleet.AgentID `json:"agent_id"`
	ClockAhead int64         `json:"clock_ahead_seconds" jsonschema:"How far it is ahead of the server's, in seconds; negative: behind."`
}

type overviewOut struct {
	Agents      int     `json:"agents" jsonschema:"How many agents are in scope."`
	Online      int     `json:"online"`
	Offline     int     `json:"offline"`
	Quarantined int     `json:"quarantined"`
	OS          []count `json:"os" jsonschema:"Agents by operating system."`
	Labels      []count `json:"labels" jsonschema:"Agents by label (key=value), the most frequent 50."`
	Versions    []count `json:"agent_versions" jsonschema:"Agents by the version of their agent program."`
	Away        []away  `json:"away" jsonschema:"Agents that aren't online, the first 50 by id."`
	Clocks      []clock `json:"clocks" jsonschema:"Agents whose clock is off by more than a minute, the first 50 by id."`
	OfflineWhy  string  `json:"offline_why,omitempty" jsonschema:"Why agents that are shown as offline may be online; absent when nothing is wrong."`
}

// overviewMax bounds each list of fleet_overview.
const overviewMax = 50

func (a *API) overview(_ context.Context, by use, _ struct{}) (any, error) {
	out := overviewOut{Away: []away{}, Clocks: []clock{}, OfflineWhy: a.fleet.OfflineWhy()}
	systems, labels, versions := map[string]int{}, map[string]int{}, map[string]int{}
	for _, agent := range a.fleet.Agents(by.who) {
		row := rowOf(agent)
		out.Agents++
		switch row.State {
		case stateOnline:
			out.Online++
		case stateQuarantined:
			out.Quarantined++
		default:
			out.Offline++
		}
		if row.State != stateOnline && len(out.Away) < overviewMax {
			out.Away = append(out.Away, away{row.AgentID, row.State, row.LastSeen})
		}
		if row.ClockAhead != 0 && len(out.Clocks) < overviewMax {
			out.Clocks = append(out.Clocks, clock{row.AgentID, row.ClockAhead})
		}
		systems[cmp.Or(row.OS, "unknown")]++
		versions[cmp.Or(text.Line(agent.Facts.AgentVersion, 64), "unknown")]++
		for k, v := range agent.Labels {
			labels[k+"="+v]++
		}
	}
	out.OS, out.Labels, out.Versions = counts(systems), counts(labels), counts(versions)
	return out, nil
}

// counts sorts by count, then name, and keeps the first overviewMax.
func counts(m map[string]int) []count {
	out := make([]count, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, count{name, m[name]})
	}
	slices.SortStableFunc(out, func(a, b count) int { return cmp.Compare(b.Count, a.Count) })
	return out[:min(len(out), overviewMax)]
}

type whoamiOut struct {
	Principal  string   `json:"principal" jsonschema:"The credential's id, as the record has it."`
	Name       string   `json:"name" jsonschema:"Its name."`
	Kind       string   `json:"kind" jsonschema:"pat, or system."`
	Admin      bool     `json:"admin" jsonschema:"Whether it may manage Drover itself."`
	ExpiresAt  string   `json:"expires_at,omitempty" jsonschema:"RFC 3339, UTC; absent if it doesn't expire."`
	Agents     int      `json:"agents" jsonschema:"How many agents it reaches."`
	Online     int      `json:"agents_online" jsonschema:"How many of them are known to be online."`
	OfflineWhy string   `json:"offline_why,omitempty" jsonschema:"Why agents that are shown as offline may be online; absent when nothing is wrong."`
	Tools      []string `json:"tools" jsonschema:"The tools it may use on them."`
	Version    string   `json:"server_version" jsonschema:"The server's version."`
}

func (a *API) whoami(_ context.Context, by use, _ struct{}) (any, error) {
	out := whoamiOut{
		Principal: by.who.ID, Name: text.Line(by.who.Name, 128), Kind: string(by.who.Kind), Admin: by.who.Admin,
		Tools: a.toolsFor(by.who), Version: a.version, OfflineWhy: a.fleet.OfflineWhy(),
	}
	if !by.who.ExpiresAt.IsZero() {
		out.ExpiresAt = by.who.ExpiresAt.UTC().Format(time.RFC3339)
	}
	for _, agent := range a.fleet.Agents(by.who) {
		out.Agents++
		if agent.Online {
			out.Online++
		}
	}
	return out, nil
}
