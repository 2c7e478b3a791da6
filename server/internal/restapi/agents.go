package restapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// AgentInfo is an agent. What the host says of itself is unverified text.
type AgentInfo struct {
	AgentID      string            `json:"agent_id" doc:"The id that calls name."`
	State        string            `json:"state" enum:"online,offline,quarantined,unknown" doc:"unknown: asked of a process that holds no tunnels."`
	Since        time.Time         `json:"since,omitzero" doc:"When it came online."`
	OfflineWhy   string            `json:"offline_why,omitzero" doc:"Why it may be online although it's shown as offline; absent when nothing is wrong."`
	Quarantine   string            `json:"quarantine,omitzero" doc:"Why its identity isn't let in."`
	Notice       string            `json:"notice,omitzero" doc:"What an operator should know of its identity: that a copy of its key was refused."`
	Hostname     string            `json:"hostname" doc:"What the host calls itself. Not an id."`
	OS           string            `json:"os" doc:"As Go names it: linux, darwin, windows."`
	OSVersion    string            `json:"os_version"`
	Arch         string            `json:"arch"`
	RunAs        string            `json:"run_as" doc:"The user that its commands run as."`
	AgentVersion string            `json:"agent_version"`
	ClockAheadMS int64             `json:"clock_ahead_ms,omitzero" doc:"How far its clock is ahead of the server's, in milliseconds, as it saw it when it connected; negative: behind."`
	Roots        []string          `json:"roots" doc:"Folders that its file tools are confined to; none: not confined."`
	Labels       map[string]string `json:"labels" doc:"The operator's."`
	Description  string            `json:"description" doc:"The operator's."`
	Tools        []string          `json:"tools" doc:"The built-in tools that it offers."`
	Generation   int64             `json:"generation" doc:"Counts its keys, from 1."`
	Fingerprint  string            `json:"fingerprint" doc:"SHA-256 of its present key, base64url."`
	CreatedAt    time.Time         `json:"created_at"`
	LastSeen     time.Time         `json:"last_seen,omitzero" doc:"Now, while it's online; absent before its first connection."`
}

type listAgentsIn struct {
	Query  string `query:"query" maxLength:"200" doc:"Text that the id, hostname, description or a label contains, in any case."`
	Labels string `query:"labels" maxLength:"2000" doc:"k=v,k=v: agents that have all of these."`
	State  string `query:"state" enum:"online,offline,quarantined" doc:"Only agents in this state."`
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many."`
	Cursor string `query:"cursor" maxLength:"63" doc:"next_cursor of the page before."`
}

type agentList struct {
	Body AgentList
}

// AgentList is a page of agents.
type AgentList struct {
	Agents     []AgentInfo `json:"agents"`
	Total      int         `json:"total" doc:"How many there are on all pages."`
	NextCursor string      `json:"next_cursor,omitzero" doc:"Give this as cursor for the next page; absent on the last."`
	OfflineWhy string      `json:"offline_why,omitzero" doc:"Why agents that are shown as offline may be online; absent when nothing is wrong."`
}

func (a *API) listAgents(_ context.Context, who fleet.Principal, in *listAgentsIn) (*agentList, error) {
	want, err := ParseLabels(in.Labels)
	if err != nil {
		return nil, err
	}
	agents := a.Dispatch.Agents(a.reader(who))
	if err := dispatch.CheckCursor(agents, in.Cursor); err != nil {
		return nil, err
	}
	out := AgentList{Agents: []AgentInfo{}, OfflineWhy: a.Dispatch.OfflineWhy()}
	for _, v := range agents {
		if !matches(v, in.Query, want) || (in.State != "" && a.stateOf(v) != in.State) {
			continue
		}
		out.Total++
		switch {
		case string(v.ID) <= in.Cursor:
		case len(out.Agents) < in.Limit:
			out.Agents = append(out.Agents, a.info(v))
		case out.NextCursor == "":
			out.NextCursor = out.Agents[len(out.Agents)-1].AgentID
		}
	}
	return &agentList{Body: out}, nil
}

// reader is the principal for reading agents: administrators manage all of them, whatever
// their grant lets them call.
func (a *API) reader(who fleet.Principal) fleet.Principal {
	if who.Admin {
		who.Grant.Agents = fleet.AgentSet{All: true}
	}
	return who
}

func matches(v dispatch.AgentView, query string, labels map[string]string) bool {
	for k, want := range labels {
		if got, ok := v.Labels[k]; !ok || got != want {
			return false
		}
	}
	if query == "" {
		return true
	}
	q := strings.ToLower(query)
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), q) }
	if has(string(v.ID)) || has(v.Facts.Hostname) || has(v.Description) {
		return true
	}
	for k, val := range v.Labels {
		if has(k + "=" + val) {
			return true
		}
	}
	return false
}

// ParseLabels reads k=v,k=v; empty text is no label.
func ParseLabels(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	out := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || !fleet.ValidLabel(k, v) {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "labels are written k=v,k=v: keys of a-z, 0-9, '.', '_', '-', '/', at most 63 characters; values of at most 128 printable ones")
		}
		if _, twice := out[k]; twice {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "the label %s is given twice", text.Quote(k, 63))
		}
		out[k] = v
	}
	return out, nil
}

type agentPath struct {
	AgentID string `path:"agent_id" maxLength:"200" doc:"The agent's id."`
}

type agentOut struct {
	Body AgentInfo
}

func (a *API) showAgent(_ context.Context, who fleet.Principal, in *agentPath) (*agentOut, error) {
	v, err := a.Dispatch.Agent(a.reader(who), in.AgentID, edgeName)
	if err != nil {
		return nil, err
	}
	return &agentOut{Body: a.info(v)}, nil
}

// AgentChange says what to set; an absent member leaves what is there.
type AgentChange struct {
	Labels      map[string]string `json:"labels,omitzero" doc:"All the labels that the agent shall have; {} for none."`
	Description *string           `json:"description,omitzero" maxLength:"1000" doc:"For people and models: what the host is for. At most 1000 bytes of UTF-8."`
}

type setAgentIn struct {
	AgentID string `path:"agent_id" maxLength:"200" doc:"The agent's id."`
	Body    AgentChange
}

func (a *API) setAgent(ctx context.Context, who fleet.Principal, in *setAgentIn) (*agentOut, error) {
	v, err := a.Dispatch.Agent(a.reader(who), in.AgentID, edgeName)
	if err != nil {
		return nil, err
	}
	if in.Body.Labels == nil && in.Body.Description == nil {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "nothing to set: give labels, description or both")
	}
	if err := fleet.CheckLabels(in.Body.Labels); err != nil {
		return nil, err
	}
	detail := map[string]string{}
	if in.Body.Labels != nil {
		detail["labels"] = LabelsText(in.Body.Labels)
	}
	if d := in.Body.Description; d != nil {
		if len(*d) > 1000 {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "a description has at most 1000 bytes")
		}
		detail["description"] = *d
	}
	ev := fleet.AdminEvent{Principal: who.ID, Action: "agent.set", Object: "agent:" + string(v.ID), Detail: detail, At: time.Now().UTC()}
	if err := a.Store.SetAgent(ctx, v.ID, in.Body.Labels, in.Body.Description, ev); err != nil {
		return nil, err
	}
	if v, err = a.Dispatch.Agent(a.reader(who), in.AgentID, edgeName); err != nil {
		return nil, err
	}
	return &agentOut{Body: a.info(v)}, nil
}

type nothing struct{}

func (a *API) removeAgent(ctx context.Context, who fleet.Principal, in *agentPath) (*nothing, error) {
	v, err := a.Dispatch.Agent(a.reader(who), in.AgentID, edgeName)
	if err != nil {
		return nil, err
	}
	return &nothing{}, a.Enrolment.RemoveAgent(ctx, who.ID, v.ID)
}

// Purged tells what a purge did.
type Purged struct {
	Cancelled int `json:"cancelled" doc:"How many queued calls were taken back; none of them runs."`
}

type purgedOut struct {
	Body Purged
}

func (a *API) purgeAgent(ctx context.Context, who fleet.Principal, in *agentPath) (*purgedOut, error) {
	v, err := a.Dispatch.Agent(a.reader(who), in.AgentID, edgeName)
	if err != nil {
		return nil, err
	}
	if a.Blind {
		return nil, fleet.Errorf(protocol.CodeUnavailable, "the running server has the queue, and this process isn't it: ask it with --url and an administrator's token")
	}
	ev := fleet.AdminEvent{Principal: who.ID, Action: "agent.purge", Object: "agent:" + string(v.ID), At: time.Now().UTC()}
	if err := a.Store.RecordAdmin(ctx, ev); err != nil {
		return nil, err
	}
	n, err := a.Dispatch.Purge(ctx, who, string(v.ID))
	if err != nil {
		return nil, err
	}
	return &purgedOut{Body: Purged{Cancelled: n}}, nil
}

func (a *API) stateOf(v dispatch.AgentView) string {
	switch {
	case v.Quarantined != "":
		return "quarantined"
	case a.Blind:
		return "unknown"
	case v.Online:
		return "online"
	default:
		return "offline"
	}
}

func (a *API) info(v dispatch.AgentView) AgentInfo {
	out := AgentInfo{
		AgentID: string(v.ID), State: a.stateOf(v), Since: v.Since.UTC(), Quarantine: v.Quarantined, Notice: v.Notice,
		Hostname: v.Facts.Hostname, OS: v.Facts.OS, OSVersion: v.Facts.OSVersion, Arch: v.Facts.Arch,
		RunAs: v.Facts.RunAs, AgentVersion: v.Facts.AgentVersion, Roots: v.Facts.Roots, ClockAheadMS: v.Facts.ClockAheadMS,
		Labels: v.Labels, Description: v.Description, Tools: []string{}, Generation: v.Generation,
		Fingerprint: protocol.B64(v.Fingerprint), CreatedAt: v.CreatedAt.UTC(), LastSeen: v.LastSeen.UTC(),
	}
	if out.State == "offline" {
		out.OfflineWhy = v.OfflineWhy
	}
	for _, c := range v.Capabilities {
		out.Tools = append(out.Tools, c.Name)
	}
	return out
}

// LabelsText writes labels as ParseLabels reads them, by key.
func LabelsText(labels map[string]string) string {
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for i, k := range keys {
		keys[i] = k + "=" + labels[k]
	}
	return strings.Join(keys, ",")
}
