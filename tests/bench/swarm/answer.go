package swarm

import (
	"context"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
)

// Answer answers every call at once with a fixed result. Requests aren't checked: that's
// what a real agent does.
type Answer struct{}

// Handle implements mux.Handler.
func (Answer) Handle(_ context.Context, req *protocol.Request, _ *mux.Work) *protocol.Response {
	r := &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, TookUS: 1}
	switch req.Tool {
	case "shell_exec", "powershell_exec":
		r.Result = []byte(`{"exit_code":0,"stdout":"hi\n","stderr":"","stdout_bytes":3,"stderr_bytes":0,"duration_ms":0}`)
	case "fs_stat":
		r.Result = []byte(`{"name":"/","path":"/","type":"dir","size":4096,"mode":"0755","modified":"2026-01-01T00:00:00Z"}`)
	default:
		r.Error = protocol.Errorf(protocol.CodeUnsupported, "a simulated agent doesn't do %s", text.Line(req.Tool, 40))
	}
	return r
}
