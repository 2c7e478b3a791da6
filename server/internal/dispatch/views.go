package dispatch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// AgentView is an agent as a principal that has it in scope sees it.
type AgentView struct {
	*fleet.Agent
	Online bool
	// Since is when it came online, zero while it's offline.
	Since time.Time
	// LastSeen is when it was seen last, zero if never. While it's online that's now: what the
	// store has (the Agent's) is up to a minute old, and may be of before it came online.
	LastSeen time.Time
	// OfflineWhy is why it may be online although it's shown as offline, or "".
	OfflineWhy string
	// Quarantined is why its identity isn't let in now, or "".
	Quarantined string
	// Notice is what an operator should know of its identity, or "": a copy was refused.
	Notice string
}

// Agents lists the agents in the principal's scope, by id.
func (d *Dispatcher) Agents(who fleet.Principal) []AgentView {
	snap := d.db.Snapshot()
	out := make([]AgentView, 0, len(snap.Agents))
	for _, a := range snap.Agents {
		if authz.Agent(who, a) {
			out = append(out, d.view(snap, a))
		}
	}
	slices.SortFunc(out, func(a, b AgentView) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

// Agent finds one agent in the principal's scope, by its exact id; the error is the same
// for every id that isn't there. edge is whose words it takes.
func (d *Dispatcher) Agent(who fleet.Principal, id, edge string) (AgentView, error) {
	snap := d.db.Snapshot()
	a := lookup(snap, id)
	if !authz.Agent(who, a) {
		return AgentView{}, unknownAgent(snap, who, id, edge)
	}
	return d.view(snap, a), nil
}

func (d *Dispatcher) view(snap *store.Snapshot, a *fleet.Agent) AgentView {
	online, since := d.online(a.ID)
	v := AgentView{Agent: a, Online: online, Since: since, LastSeen: a.LastSeen}
	if v.Quarantined, v.Notice = standing(snap, a.ID); online {
		v.Quarantined = ""
		if v.LastSeen = time.Now(); v.LastSeen.Before(since) { // by another replica's clock
			v.LastSeen = since
		}
	}
	if !online {
		v.OfflineWhy = d.OfflineWhy()
	}
	return v
}

// OfflineWhy is why agents that aren't known to be online now may be, "" when nothing is wrong:
// whoever shows or refuses one as offline says so.
func (d *Dispatcher) OfflineWhy() string {
	if d.offlineWhy == nil {
		return ""
	}
	return d.offlineWhy()
}

// standing is what's wrong with an agent's identity now. Who broke the protocol repeatedly
// is quarantined itself; of a copied identity the copy was refused, and the agent serves on.
func standing(snap *store.Snapshot, id fleet.AgentID) (quarantined, notice string) {
	q, ok := snap.Quarantined[id]
	switch {
	case !ok || (!q.Until.IsZero() && time.Now().After(q.Until)):
		return "", ""
	case q.Reason == "violations":
		return "it broke the protocol repeatedly; let in again at " + q.Until.UTC().Format(time.RFC3339), ""
	case q.Reason == "replaced":
		return "", "a copy of its state was connected in its place until " + q.At.UTC().Format(time.RFC3339) +
			", and calls may have run there: see drover audit list; find the copy, and enrol it anew under its own id"
	case q.Reason == "forked":
		return "", "a process with its key and an older state was refused at " + q.At.UTC().Format(time.RFC3339) +
			": another one with this key has been connected since, and calls may have run there; find the copy; if that's the one that serves, enrol the original anew with drover enroll create --replace"
	default:
		return "", "a copy of its key was refused (" + q.Reason + ") at " + q.At.UTC().Format(time.RFC3339) +
			": find the copy; if the original is gone, enrol it anew with drover enroll create --replace"
	}
}

// views remembers the tools of principals for one version of the policy: every MCP
// request asks for them. It's bounded by the number of live principals, and emptied when
// the version moves.
type views struct {
	mu      sync.Mutex
	version int64
	tools   map[string][]*capability.Definition
}

// Tools lists the forwarded tools that the principal may use, in the order of
// capability.All: those granted that an agent in scope has announced, online or not, so
// that the list is stable. Before any agent in scope has announced something it's all
// that are granted.
func (d *Dispatcher) Tools(who fleet.Principal) []*capability.Definition {
	snap := d.db.Snapshot()
	d.views.mu.Lock()
	defer d.views.mu.Unlock()
	if d.views.version != snap.Version || d.views.tools == nil {
		d.views.version, d.views.tools = snap.Version, map[string][]*capability.Definition{}
	}
	if t, ok := d.views.tools[who.ID]; ok {
		return t
	}
	t := toolsOf(snap, who)
	d.views.tools[who.ID] = t
	return t
}

func toolsOf(snap *store.Snapshot, who fleet.Principal) []*capability.Definition {
	announced := map[string]bool{}
	for _, a := range snap.Agents {
		if authz.Agent(who, a) {
			for _, c := range a.Capabilities {
				announced[c.Name] = true
			}
		}
	}
	var out []*capability.Definition
	for _, def := range capability.All() {
		if authz.Tool(who, def) && (len(announced) == 0 || announced[def.Name]) {
			out = append(out, def)
		}
	}
	return out
}

// CheckCursor tells whether a cursor can be one of a list of agents: the id of one, after which
// the list goes on. It may be gone by now. A call's id could be an agent's, too, and is one only
// if there's such an agent.
func CheckCursor(list []AgentView, cursor string) error {
	id, ok := fleet.ParseAgentID(cursor)
	if _, call := fleet.ParseCallID(cursor); call {
		ok = slices.ContainsFunc(list, func(v AgentView) bool { return v.ID == id })
	}
	if !ok && cursor != "" {
		return fleet.BadCursor()
	}
	return nil
}
