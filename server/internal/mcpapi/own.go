package mcpapi

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// own describes one of the tools that the server answers itself. They run nothing on a
// host and tell only of what is in the caller's scope, so that everybody has them.
type own struct {
	name, title, doc string
	changes          bool // call_cancel alone ends something
	// bounds are added to the members of the input schema.
	bounds func(*jsonschema.Schema)
	always bool // Claude Code loads it without being asked
}

// ownTools are the server's own tools.
func (a *API) ownTools() []offer {
	return []offer{
		define[listIn, listOut](a, own{
			name: "list_agents", title: "List the hosts in reach", bounds: listBounds, always: true,
			doc: "Lists the agents (hosts) that this credential reaches, by agent_id, with state, hostname, system and the operator's labels and description. " +
				"Take agent_id for other tools from here, exactly. query finds text in any of these; labels and state narrow further; long lists come in pages.",
		}, a.listAgents),
		define[selectIn, selectOut](a, own{
			name: "select_agent", title: "Check one agent (selects nothing)",
			doc: "Checks an agent_id: whether it exists in this credential's scope, is online, and which tools it offers. It selects nothing and changes nothing: " +
				"every later call still needs its own agent_id.",
		}, a.selectAgent),
		define[struct{}, overviewOut](a, own{
			name: "fleet_overview", title: "Summarise the fleet",
			doc: "Counts the agents in this credential's scope by state, system and label, and names those that are offline. Use list_agents for single agents.",
		}, a.overview),
		define[struct{}, whoamiOut](a, own{
			name: "whoami", title: "Show this credential",
			doc: "Tells which credential is being used, until when, how many agents it reaches and which tools it may use on them.",
		}, a.whoami),
		define[resultIn, none](a, own{
			name: "call_result", title: "Wait for a call's result", bounds: resultBounds,
			doc: "Gives the result of an earlier call by its call id, as the call itself would have given it; waits for its end up to wait_seconds. " +
				"A call that still runs, or is queued for a host that is offline, is reported as such: ask again. Results are kept for a day.",
		}, a.callResult),
		define[cancelIn, cancelOut](a, own{
			name: "call_cancel", title: "Cancel a running or queued call", changes: true, bounds: cancelBounds,
			doc: "Ends a running call by its call id, with every process it started, and tells how it ended; takes a queued one back. A call that has ended already is left as it is.",
		}, a.callCancel),
	}
}

// none is the output type of a tool without structured content of its own.
type none struct{}

// define makes a server tool from a function: its schemas come from the types, arguments
// are read strictly, an error becomes a result and is recorded. A run that returns a
// *mcp.CallToolResult has its answer passed on as it is.
func define[In, Out any](a *API, o own, run func(context.Context, use, In) (any, error)) offer {
	in := schemaOf[In]()
	if o.bounds != nil {
		o.bounds(in)
	}
	t := &mcp.Tool{
		Name: o.name, Title: o.title, Description: o.doc, InputSchema: rawSchema(in),
		Annotations: hints(o.title, !o.changes, o.changes, true, false),
	}
	if _, plain := any(*new(Out)).(none); !plain {
		t.OutputSchema = rawSchema(schemaOf[Out]())
	}
	if o.always {
		t.Meta = mcp.Meta{"anthropic/alwaysLoad": true}
	}
	members, fits := in.PropertyOrder, capability.Fits(o.name, in)
	return offer{t, func(ctx context.Context, u use) (*mcp.CallToolResult, error) {
		var args In
		err := readArguments(o.name, u.args, &args, members)
		if err == nil && len(u.args) > 0 && u.args.Kind() != 'n' {
			err = fits(u.args) // all that its schema says
		}
		var out any
		if err == nil {
			out, err = run(ctx, u, args)
		}
		if err != nil && ctx.Err() != nil {
			return errorResult(o.name, errEnded()), nil
		}
		if err != nil {
			fe := fleet.AsError(err)
			a.dispatch.Refuse(u.who, fleet.Refusal{
				Client: u.client, Edge: edgeName, Tool: o.name, Agent: namedAgent(u.args), Code: fe.Code, Message: fe.Message,
			})
			return errorResult(o.name, fe), nil
		}
		if r, ok := out.(*mcp.CallToolResult); ok {
			return r, nil
		}
		return structured(out)
	}}
}

// structured shows a value as structured content, with a copy as text.
func structured(v any) (*mcp.CallToolResult, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("mcpapi: a result: %w", err)
	}
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: string(b)}}, StructuredContent: stdjson.RawMessage(b),
	}, nil
}

// readArguments reads a server tool's arguments: exact names, nothing unknown or null.
func readArguments(tool string, args []byte, in any, members []string) error {
	if len(args) == 0 || jsontext.Value(args).Kind() == 'n' {
		args = []byte("{}")
	}
	err := strict.Unmarshal(args, in, strict.Limits{MaxBytes: 64 << 10, Numbers: true})
	var se *strict.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &se):
		return fleet.Wrap(protocol.CodeBadArgs, err, "the arguments of %s could not be read", tool)
	}
	takes := "it takes no arguments"
	if len(members) > 0 {
		takes = "it takes " + strings.Join(members, ", ")
	}
	return fleet.Errorf(protocol.CodeBadArgs, "the arguments of %s: %s; %s", tool, se.Error(), takes)
}

// schemaOf infers a schema. Slices are arrays, never null.
func schemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("mcpapi: schema of %T: %v", *new(T), err))
	}
	notNull(s)
	if s.Properties == nil {
		s.Properties = map[string]*jsonschema.Schema{}
	}
	return s
}

func notNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	notNull(s.Items)
	for _, p := range s.Properties {
		notNull(p)
	}
}

func ptr[T any](v T) *T { return &v }
