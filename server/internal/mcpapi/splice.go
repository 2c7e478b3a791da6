package mcpapi

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// agentMember is the argument that every forwarded tool has: the agent's id.
const agentMember = "agent_id"

// splice takes agent_id out of a call's arguments. It returns its raw value, nil where it
// was absent, and the object of the other members, each of them byte for byte as it came:
// these bytes are frozen, recorded and sent. args must have passed preflight.
func splice(args []byte) (agent, rest jsontext.Value, err error) {
	if len(args) == 0 || jsontext.Value(args).Kind() == 'n' {
		return nil, jsontext.Value("{}"), nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(args))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return nil, nil, badArguments(err)
	}
	rest = make(jsontext.Value, 1, len(args))
	rest[0] = '{'
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return nil, nil, badArguments(err)
		}
		from := dec.InputOffset() - int64(len(name))
		isAgent := unquote(name) == agentMember
		v, err := dec.ReadValue()
		if err != nil {
			return nil, nil, badArguments(err)
		}
		to := dec.InputOffset()
		if isAgent {
			agent = jsontext.Value(args[to-int64(len(v)) : to])
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(rest, args[from:to]...)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, nil, badArguments(err)
	}
	return agent, append(rest, '}'), nil
}

func badArguments(err error) error {
	return fleet.Wrap(protocol.CodeBadArgs, err, "the arguments must be a JSON object without duplicate names")
}
