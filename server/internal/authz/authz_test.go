package authz

import (
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func TestDecide(t *testing.T) {
	agent := &fleet.Agent{ID: "web-01", Labels: map[string]string{"env": "prod", "role": "web"}}
	all, none := fleet.AgentSet{All: true}, fleet.AgentSet{}
	allTools := fleet.ToolSet{All: true}
	ids := func(ids ...fleet.AgentID) fleet.AgentSet { return fleet.AgentSet{IDs: ids} }
	sel := func(kv ...string) fleet.AgentSet {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return fleet.AgentSet{Selector: m}
	}
	names := func(n ...string) fleet.ToolSet { return fleet.ToolSet{Names: n} }
	const ok, ua, ut = protocol.Code(""), protocol.CodeUnknownAgent, protocol.CodeUnknownTool
	for _, c := range []struct {
		name   string
		agents fleet.AgentSet
		tools  fleet.ToolSet
		def    *capability.Definition
		agent  *fleet.Agent
		want   protocol.Code
	}{
		{"everything", all, allTools, capability.ShellExec.Definition, agent, ok},
		{"no agents", none, allTools, capability.ShellExec.Definition, agent, ua},
		{"no tools", all, fleet.ToolSet{}, capability.ShellExec.Definition, agent, ut},
		{"nothing", none, fleet.ToolSet{}, capability.ShellExec.Definition, agent, ut},
		{"by id", ids("web-01"), names("shell_exec"), capability.ShellExec.Definition, agent, ok},
		{"other id", ids("web-0", "web-011", "WEB-01"), allTools, capability.ShellExec.Definition, agent, ua},
		{"group", all, names("fs"), capability.FSRead.Definition, agent, ok},
		{"other group", all, names("f", "fs_", "fs_rea"), capability.FSRead.Definition, agent, ut},
		{"name only", all, names("fs_read"), capability.FSWrite.Definition, agent, ut},
		{"selector", sel("env", "prod"), allTools, capability.FSRead.Definition, agent, ok},
		{"selector of two", sel("env", "prod", "role", "db"), allTools, capability.FSRead.Definition, agent, ua},
		{"unknown label", sel("zone", ""), allTools, capability.FSRead.Definition, agent, ua},
		{"empty selector", sel(), allTools, capability.FSRead.Definition, agent, ua},
		{"no such agent", all, allTools, capability.FSRead.Definition, nil, ua},
		{"no such tool", all, allTools, nil, agent, ut},
		{"no such tool nor agent", all, allTools, nil, nil, ut},
	} {
		who := fleet.Principal{ID: "pat:1", Kind: fleet.KindPAT, Grant: fleet.Grant{Agents: c.agents, Tools: c.tools}}
		if got := Decide(who, c.def, c.agent); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		who.ID = ""
		if got := Decide(who, c.def, c.agent); got == ok {
			t.Errorf("%s: allowed without an identity", c.name)
		}
		who.ID, who.Admin = "pat:1", true
		if got := Decide(who, c.def, c.agent); got != c.want {
			t.Errorf("%s: admin changes the decision to %q", c.name, got)
		}
	}
}
