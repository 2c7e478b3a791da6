// Package run executes requests: it checks that a request is for this agent and new,
// finds the capability, and holds it to its deadline and limits.
package run

import (
	"cmp"
	"context"
	"reflect"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// Call is what a capability knows of the call that it serves.
type Call struct {
	ID     string
	Caller protocol.Caller
	// Traceparent is the trace that the call belongs to, well-formed; "" for none.
	Traceparent string
	latest      atomic.Pointer[func() string]

	journal *journal.Journal // nil, as is flight, without a Runner
	flight  *flight
}

// Latest sets where progress comes from: fn returns the latest line of output, "" when
// there is none. It's called from another goroutine, every few seconds.
func (c *Call) Latest(fn func() string) { c.latest.Store(&fn) }

// Started tells which process does the call's work, so that its trace isn't lost with the
// agent.
func (c *Call) Started(pid int) {
	if c.flight == nil {
		return
	}
	if err := c.journal.Process(c.flight.id, pid); err != nil {
		c.flight.log.Error("the journal can't be written", "err", err)
	}
}

// line is the latest line of output. A panic there costs the line, and not the agent with all
// that it runs.
func (c *Call) line() (line string) {
	defer func() {
		if p := recover(); p != nil {
			c.flight.log.Error("the latest line of output can't be told", "panic", p, "stack", string(debug.Stack()))
			line = ""
		}
	}()
	if fn := c.latest.Load(); fn != nil {
		return (*fn)()
	}
	return ""
}

// function is a bound capability without its Go types: check the arguments, then run.
type function func(args []byte) (run func(context.Context, *Call) (any, error), err error)

type bound struct {
	def *capability.Definition
	fn  function
}

// Registry holds the capabilities that this agent offers. It's filled at start and only
// read afterwards.
type Registry struct {
	tools map[string]bound
	// recalls tell the result of a call whose agent ended before it could answer.
	recalls map[string]func(callID string) (out any, ok bool)
}

// Recall attaches what finds the result of a call that an earlier process of this agent began,
// where more is left of it than the journal has. It returns soon.
func Recall[In, Out any](r *Registry, tool *capability.Tool[In, Out], fn func(callID string) (Out, bool)) {
	if r.recalls == nil {
		r.recalls = map[string]func(string) (any, bool){}
	}
	r.recalls[tool.Name] = func(callID string) (any, bool) { return fn(callID) }
}

// Bind attaches the function that does a capability. A result that isn't its type's zero
// value is sent also when there's an error: what a failed command printed is kept. The
// error should be a *protocol.Error; any other becomes internal. fn returns soon after ctx
// ends, and not before what it started is ended; Ended gives the error to return then.
func Bind[In, Out any](r *Registry, tool *capability.Tool[In, Out], fn func(ctx context.Context, c *Call, in In) (Out, error)) {
	if r.tools == nil {
		r.tools = map[string]bound{}
	}
	r.tools[tool.Name] = bound{def: tool.Definition, fn: func(args []byte) (func(context.Context, *Call) (any, error), error) {
		in, err := tool.Decode(args)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, c *Call) (any, error) {
			out, err := fn(ctx, c, in)
			if err != nil && reflect.ValueOf(&out).Elem().IsZero() {
				return nil, err
			}
			return out, err
		}, nil
	}}
}

// Capabilities lists what is offered, by name: what a hello announces.
func (r *Registry) Capabilities() []protocol.Capability {
	out := []protocol.Capability{}
	for _, b := range r.tools {
		out = append(out, protocol.Capability{Name: b.def.Name, Version: b.def.Version})
	}
	slices.SortFunc(out, func(a, b protocol.Capability) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
