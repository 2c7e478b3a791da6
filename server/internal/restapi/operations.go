package restapi

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// need is what a caller must be to use an operation. The zero need is none: a test fails.
type need int

const (
	undecided     need = iota
	public             // anybody
	authenticated      // a valid credential; the operation narrows by its grant
	admin              // a credential with --admin
)

type operation struct {
	id, method, path string
	need             need
	tag, summary     string
	doc              string
}

// operations is the API at a glance, and who may use what.
func operations() []operation {
	return []operation{
		{"whoami", http.MethodGet, "/whoami", authenticated, "session", "Who you are", "The principal behind the credential, and its grant."},
		{"list-tools", http.MethodGet, "/tools", authenticated, "calls", "List tools", "The tools that the credential may use, with the JSON schema of their arguments."},

		{"list-agents", http.MethodGet, "/agents", authenticated, "agents", "List agents", "The agents in the credential's scope, online or not, by id."},
		{"show-agent", http.MethodGet, "/agents/{agent_id}", authenticated, "agents", "Show an agent", "Unknown, removed and out of scope can't be told apart."},
		{"set-agent", http.MethodPatch, "/agents/{agent_id}", admin, "agents", "Set labels and description", "Members that are absent stay as they are. labels replaces all labels."},
		{"remove-agent", http.MethodDelete, "/agents/{agent_id}", admin, "agents", "Remove an agent", "Its key is refused from now on and its id is never given out again."},
		{"purge-agent", http.MethodPost, "/agents/{agent_id}/purge", admin, "agents", "Purge an agent's queue", "Takes back the calls that wait for the agent to connect. What was sent goes on."},

		{"create-call", http.MethodPost, "/calls", authenticated, "calls", "Run a tool on one agent", "Answers 200 with the call once it has ended, 202 with the open call after wait_seconds; then ask show-call. With queue_for_seconds a call to an agent that is offline is queued."},
		{"list-calls", http.MethodGet, "/calls", authenticated, "calls", "List calls", "The caller's own calls, the newest first; an administrator sees all."},
		{"show-call", http.MethodGet, "/calls/{call_id}", authenticated, "calls", "Show a call", "Waits up to wait_seconds for its end."},
		{"show-commitments", http.MethodGet, "/calls/{call_id}/commitments", authenticated, "calls", "Show what the record commits to of a call", "The salted hashes of its exact arguments and result, with what it takes to check them: all of it for the caller, and for an administrator where the exact bytes are kept. docs/security.md has the formulas."},
		{"cancel-call", http.MethodPost, "/calls/{call_id}/cancel", authenticated, "calls", "Cancel a call", "Answers when the work on the host is dead, or after a while with the open call. A queued call is taken back."},

		{"download-file", http.MethodGet, "/agents/{agent_id}/files", authenticated, "files", "Download a file from an agent", downloadDoc},
		{"upload-file", http.MethodPut, "/agents/{agent_id}/files", authenticated, "files", "Upload a file to an agent", uploadDoc},

		{"create-pat", http.MethodPost, "/pats", admin, "pats", "Create a personal access token", "The answer holds the token, this once. Neither agents nor tools have a default."},
		{"list-pats", http.MethodGet, "/pats", admin, "pats", "List personal access tokens", "The newest first; revoked and expired ones too. Never the tokens themselves."},
		{"revoke-pat", http.MethodDelete, "/pats/{pat_id}", admin, "pats", "Revoke a personal access token", "It's refused from now on, and what runs with it is ended."},

		{"create-enrolment", http.MethodPost, "/enrolments", admin, "enrolments", "Create an enrolment token", "A right to register one host's key under an agent id, once. The answer holds the token, this once."},
		{"list-enrolments", http.MethodGet, "/enrolments", admin, "enrolments", "List enrolment tokens", "The newest first; used, revoked and expired ones too. Never the tokens themselves."},
		{"revoke-enrolment", http.MethodDelete, "/enrolments/{enrolment_id}", admin, "enrolments", "Revoke an enrolment token", "A host that enrolled with it stays."},

		{"list-audit", http.MethodGet, "/audit", admin, "audit", "List the record", "Intents, outcomes, refusals and administrative changes, the newest first."},
	}
}

// register attaches every operation. One that the table lacks panics, one without handler
// is found by a test.
func (a *API) register() {
	handle(a, "whoami", a.whoami)
	handle(a, "list-tools", a.listTools)
	handle(a, "list-agents", a.listAgents)
	handle(a, "show-agent", a.showAgent)
	handle(a, "set-agent", a.setAgent)
	handle(a, "remove-agent", a.removeAgent)
	handle(a, "purge-agent", a.purgeAgent)
	handle(a, "create-call", a.createCall)
	handle(a, "list-calls", a.listCalls)
	handle(a, "show-call", a.showCall)
	handle(a, "show-commitments", a.showCommitments)
	handle(a, "cancel-call", a.cancelCall)
	handle(a, "create-pat", a.createPAT)
	handle(a, "list-pats", a.listPATs)
	handle(a, "revoke-pat", a.revokePAT)
	handle(a, "create-enrolment", a.createEnrolment)
	handle(a, "list-enrolments", a.listEnrolments)
	handle(a, "revoke-enrolment", a.revokeEnrolment)
	handle(a, "list-audit", a.listAudit)
	a.describeFiles()
	a.amend()
}

// find returns an operation of the table. One that isn't there panics.
func find(id string) operation {
	for _, op := range operations() {
		if op.id == id && op.need != undecided {
			return op
		}
	}
	panic("restapi: nobody decided who may use the operation " + id)
}

// described is what the table says of an operation, for the description of the API.
func (a *API) described(op operation) huma.Operation {
	problem := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	h := huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Summary: op.summary, Description: op.doc, Tags: []string{op.tag},
		Responses: map[string]*huma.Response{"default": {Description: "An error, with its code.",
			Content: map[string]*huma.MediaType{"application/json": {Schema: problem}}}},
	}
	if op.need != public {
		h.Security = []map[string][]string{{"pat": {}}, {"session": {}}}
	}
	return h
}

// handle registers one operation of the table.
func handle[I, O any](a *API, id string, h func(context.Context, fleet.Principal, *I) (*O, error)) {
	op := find(id)
	h0 := a.described(op)
	h0.Middlewares, h0.MaxBodyBytes, h0.BodyReadTimeout = huma.Middlewares{a.guard(op)}, -1, -1 // guard has read it
	h0.SkipValidateBody = true                                                                  // the strict decoder has the last word on bodies, see unmarshal
	huma.Register(a.huma, h0, func(ctx context.Context, in *I) (*O, error) {
		who, _ := edge.Principal(ctx)
		out, err := h(ctx, who, in)
		switch {
		case err != nil && ctx.Err() != nil:
			// Nobody waits for this answer any more, and nothing failed: a call goes on.
			return nil, refusal{fleet.Errorf(protocol.CodeCancelled, "the request was ended before its answer"), statusClientGone}
		case err != nil:
			return nil, a.fail(id, err)
		}
		return out, nil
	})
}

// statuses corrects what the library takes for the one status of a success: what is made is
// answered with 201, and a call that's still open with 202.
func (a *API) statuses() {
	for _, item := range a.huma.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post} {
			if op == nil {
				continue
			}
			switch op.OperationID {
			case "create-pat", "create-enrolment":
				op.Responses["201"] = &huma.Response{Description: "It's made.", Content: op.Responses["200"].Content}
				delete(op.Responses, "200")
			case "create-call", "show-call", "cancel-call":
				op.Responses["200"].Description = "The call has ended, however it did."
				op.Responses["202"] = &huma.Response{Description: "The call is open still.", Content: op.Responses["200"].Content}
			}
		}
	}
}

// amend corrects what the library can't know: raw members, that null is nowhere accepted or
// sent, that answers may get new members, and that its own error types aren't used.
func (a *API) amend() {
	a.statuses()
	schemas := a.huma.OpenAPI().Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	bodies := []string{"CallRequest", "AgentChange", "PATRequest", "EnrolmentRequest"}
	for name, s := range schemas {
		if !slices.Contains(bodies, name) {
			s.AdditionalProperties = nil
		}
		for _, p := range s.Properties {
			p.Nullable = false
		}
	}
	set := func(schema, member string, s *huma.Schema) {
		s.Description = schemas[schema].Properties[member].Description
		schemas[schema].Properties[member] = s
	}
	for _, schema := range []string{"CallRequest", "EnrolmentRequest"} {
		set(schema, "agent_id", &huma.Schema{Type: "string", Pattern: "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"})
	}
	least := 1
	schemas["AgentChange"].MinProperties = &least
	set("CallRequest", "args", &huma.Schema{Type: "object", AdditionalProperties: true})
	schemas["CallRequest"].Required = []string{"agent_id", "tool"}
	set("Call", "result", &huma.Schema{})
	set("CallSummary", "args", &huma.Schema{Type: "object", AdditionalProperties: true})
	set("Tool", "input_schema", &huma.Schema{Type: "object", AdditionalProperties: true})
	set("Tool", "output_schema", &huma.Schema{Type: "object", AdditionalProperties: true})
	set("AuditRow", "body", &huma.Schema{})
}
