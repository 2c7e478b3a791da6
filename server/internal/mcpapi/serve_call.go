package mcpapi

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Headers that the modern era demands beside the version: they repeat what the body says.
const (
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
)

// plainCall is a use of a tool, outside of any session, that is in order in all that the SDK
// would look at.
type plainCall struct {
	use
	offer offer
	id    jsontext.Value
	token jsontext.Value // for progress; nil where none is asked for
}

// plain recognises the common shape of a call, which serveCall answers without the SDK: that
// would decode it and its parts a dozen times. It only ever says "certainly in order". Whatever it
// can't vouch for is the SDK's, which takes it, or finds the fault and names it; so nothing
// comes through here that the SDK would refuse, and a test holds them to the same answers.
func (a *API) plain(r *http.Request, who fleet.Principal, m *message) (*plainCall, bool) {
	h := r.Header
	if m.method != methodCall || m.more || !plainID(m.id) {
		return nil, false
	}
	version := h.Get(versionHeader)
	modern := version == modernVersion
	if modern && (h.Get(methodHeader) != methodCall || h.Get(nameHeader) != m.tool) ||
		!modern && (a.stateful(r, m.method) || version > modernVersion || !slices.Contains(a.revisions, version)) {
		return nil, false
	}
	offer, ok := a.offered(who, m.tool)
	if !ok {
		return nil, false
	}
	c := &plainCall{offer: offer, id: m.id}
	c.who, c.args, c.modern = who, m.args, modern
	return c, c.readMeta(m.meta, h)
}

// offered finds a tool among those that who may use: the server's own are everybody's.
func (a *API) offered(who fleet.Principal, tool string) (offer, bool) {
	for _, o := range a.serverTools {
		if o.tool.Name == tool {
			return o, true
		}
	}
	o, ok := a.tools[tool]
	return o, ok && slices.ContainsFunc(a.fleet.Tools(who), func(d *capability.Definition) bool { return d.Name == tool })
}

// readMeta reads _meta, and tells whether it's in order.
func (c *plainCall) readMeta(meta jsontext.Value, h http.Header) bool {
	if len(meta) > 0 && meta.Kind() != '{' || len(meta) == 0 && c.modern {
		return false
	}
	var version string
	var info *mcp.Implementation
	capabilities, fine := false, true
	_ = members(meta, func(name string, v jsontext.Value) *refusal {
		switch name {
		case mcp.MetaKeyProtocolVersion:
			version = stringOf(v)
			fine = fine && c.modern // an older revision's calls don't have it
		case mcp.MetaKeyClientInfo:
			info = new(mcp.Implementation)
			fine = fine && v.Kind() == '{' && json.Unmarshal(v, info) == nil
		case mcp.MetaKeyClientCapabilities:
			capabilities = goodCapabilities(v)
		case progressToken:
			c.token = bytes.Clone(v) // it's used for as long as the call goes on, the body isn't
			fine = fine && (v.Kind() == '"' || v.Kind() == '0')
		case metaKey:
			c.setKey(true, stringOf(v))
		case metaTrace:
			c.traceparent = stringOf(v)
		case metaToolUse:
			c.toolUseID = stringOf(v)
		}
		return nil
	})
	c.client, c.patient = clientName(info, h), patient(info)
	return fine && (!c.modern || capabilities && version == modernVersion)
}

// goodCapabilities tells whether the SDK could decode what a client says it can. Drover
// makes no use of it.
func goodCapabilities(v jsontext.Value) bool {
	if string(v) == "{}" {
		return true
	}
	var c struct {
		mcp.ClientCapabilities
		Roots *struct {
			ListChanged bool `json:"listChanged"`
		} `json:"roots"`
	}
	return v.Kind() == '{' && json.Unmarshal(v, &c) == nil
}

// stringOf is a string's text; "" for any other value.
func stringOf(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	return unquote(v)
}

// plainID tells whether an id goes back as it came: a string, or an integer as Go writes it.
func plainID(id jsontext.Value) bool {
	switch {
	case !goodID(id):
		return false
	case id.Kind() == '"':
		return true
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == string(id)
}

// accepts tells whether a client takes plain answers and event streams.
func accepts(values []string) (plain, events bool) {
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			media, _, _ := strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "application/json", "application/*":
				plain = true
			case "text/event-stream", "text/*":
				events = true
			case "*/*":
				plain, events = true, true
			}
		}
	}
	return plain, events
}

// serveCall answers a call: as plain JSON if its end comes before the first pulse and before
// any progress, else as an event stream.
func (a *API) serveCall(w http.ResponseWriter, r *http.Request, c *plainCall) {
	s := newOwnStream(w, a.caught("a stream", c.who))
	defer s.end()
	if c.token != nil {
		c.notify = func(value float64, msg string) { s.send(encodeNote(c.token, value, msg)) }
	}
	ctx, server := r.Context(), a.implementation()
	if !c.modern {
		// A client of an older revision cancels by a notification, which needs a session. Its
		// connection's end is none, and its answers don't say who gave them.
		ctx, server = context.WithoutCancel(ctx), nil
	}
	res, err := contain(a, c.offer.tool.Name, func() (*mcp.CallToolResult, error) { return c.offer.run(ctx, c.use) })
	var body []byte
	if err == nil {
		body, err = encodeResult(c.id, res, server)
	}
	if err == nil {
		s.answer(http.StatusOK, body)
		return
	}
	var e *jsonrpc.Error
	status := http.StatusBadRequest
	if !c.modern {
		status = http.StatusOK
	}
	if !errors.As(err, &e) {
		a.log.Error("a result could not be written", "tool", c.offer.tool.Name, "err", err)
		status, e = http.StatusInternalServerError, rpcError(jsonrpc.CodeInternalError, fleet.Errorf(protocol.CodeInternal, insideMessage))
	}
	if c.modern && e.Code == jsonrpc.CodeInternalError {
		status = http.StatusInternalServerError
	}
	s.answer(status, encodeRPCError(c.id, e))
}
