package mcpapi

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// The arguments that Drover adds to every forwarded tool: the agent's id, and how long a
// call may wait for an agent that is offline.
const (
	agentMember = "agent_id"
	queueMember = "queue_for_seconds"
)

// spliced are a call's arguments taken apart. agent and queue are raw values, nil where
// they were absent; rest is the object of the other members, each of them byte for byte as
// it came: these bytes are frozen, recorded and sent.
type spliced struct{ agent, queue, rest jsontext.Value }

// splice takes Drover's own members out of a call's arguments. args must have passed
// preflight.
func splice(args []byte) (spliced, error) {
	if len(args) == 0 || jsontext.Value(args).Kind() == 'n' {
		return spliced{rest: jsontext.Value("{}")}, nil
	}
	out := spliced{rest: make(jsontext.Value, 1, len(args))}
	out.rest[0] = '{'
	err := strict.Members(args, false, func(name, v jsontext.Value, from, to int) bool {
		if own := out.own(unquote(name)); own != nil {
			*own = v
			return true
		}
		if len(out.rest) > 1 {
			out.rest = append(out.rest, ',')
		}
		out.rest = append(out.rest, args[from:to]...)
		return true
	})
	if err != nil {
		return spliced{}, badArguments(err)
	}
	out.rest = append(out.rest, '}')
	if 2*len(out.rest) < cap(out.rest) { // it was white space: the rest is kept until the call ends
		out.rest = slices.Clone(out.rest)
	}
	return out, nil
}

// own is where a member of Drover's goes; nil for one of the tool's.
func (s *spliced) own(name string) *jsontext.Value {
	switch name {
	case agentMember:
		return &s.agent
	case queueMember:
		return &s.queue
	default:
		return nil
	}
}

// queueFor reads how long the call may wait for its agent; zero where that was absent.
func (s *spliced) queueFor() (time.Duration, error) {
	if s.queue == nil {
		return 0, nil
	}
	const most = int64(dispatch.MaxQueue / time.Second)
	n, ok := strict.Integer(string(s.queue)) // 60, 60.0 and 6e1; "60" is none
	if !ok || n < 1 || n > most {
		return 0, fleet.Errorf(protocol.CodeBadArgs, "%s must be a whole number of seconds from 1 to %d; leave it out to fail at once when the host is offline", queueMember, most)
	}
	return time.Duration(n) * time.Second, nil
}

func badArguments(err error) error {
	return fleet.Wrap(protocol.CodeBadArgs, err, "the arguments must be a JSON object without duplicate names")
}
