package mcpapi

import (
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/fault"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
)

// caught is what becomes of a panic in what is done for one request beside its handler.
func (a *API) caught(what string, who fleet.Principal) func(*fault.Panic) {
	return func(p *fault.Panic) {
		a.metrics.Caught(a.log, obs.InRequest, p, "what", what, "principal", who.ID)
	}
}

// contain serves one message. The SDK does so in goroutines of its own, in which nobody else
// catches a panic: it's that message's error.
func contain[T any](a *API, what string, serve func() (T, error)) (res T, err error) {
	defer fault.Catch(func(p *fault.Panic) {
		a.metrics.Caught(a.log, obs.InRequest, p, "what", what)
		err = rpcError(jsonrpc.CodeInternalError, fleet.Errorf(protocol.CodeInternal, insideMessage))
	})
	return serve()
}
