// Package authz decides whether a principal may use a tool on an agent. It's pure: the
// same question always gets the same answer.
package authz

import (
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Tool tells whether the principal may use this tool at all, on whichever agent. Lists
// are filtered with it, and every call is decided with it again.
func Tool(who fleet.Principal, def *capability.Definition) bool {
	return def != nil && who.ID != "" && who.Grant.Tools.Has(def.Name)
}

// Agent tells whether the agent is in the principal's scope. A nil agent never is.
func Agent(who fleet.Principal, agent *fleet.Agent) bool {
	return agent != nil && who.ID != "" && who.Grant.Agents.Has(agent)
}

// Decide is the decision for one call. def and agent are nil when there's no such tool or
// no such agent, and the answer for these is the same as for one that isn't granted: ""
// for allowed, else unknown_tool or unknown_agent. The tool is judged first and alone, so
// that its answer tells nothing about agents.
func Decide(who fleet.Principal, def *capability.Definition, agent *fleet.Agent) protocol.Code {
	switch {
	case !Tool(who, def):
		return protocol.CodeUnknownTool
	case !Agent(who, agent):
		return protocol.CodeUnknownAgent
	default:
		return ""
	}
}
