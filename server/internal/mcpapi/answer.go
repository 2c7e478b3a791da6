package mcpapi

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol/fault"
)

// answer ends the request of an own stream: as a plain body, or as the last event
// where the stream has begun.
func (s *stream) answer(status int, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	if s.committed {
		s.event(body)
		return
	}
	h := s.w.Header()
	h.Set("Cache-Control", noCache)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	s.committed = true
	s.w.WriteHeader(status)
	_, _ = s.w.Write(body) // a client that is gone needs no answer
}

// send sends a message before the answer: the answer becomes an event stream.
func (s *stream) send(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.beginOwn()
	s.event(msg)
}

// event writes one message to an event stream; mu is held.
func (s *stream) event(msg []byte) {
	s.patience()
	b := make([]byte, 0, len(msg)+32)
	b = append(b, "event: message\ndata: "...)
	b = append(b, msg...)
	b = append(b, "\n\n"...)
	if _, err := s.w.Write(b); err == nil {
		_ = s.rc.Flush()
	}
}

// noCache is what the SDK says of its answers.
const noCache = "no-cache, no-transform"

// newOwnStream is a stream that the SDK has no part in. It's an event stream from its first
// pulse on, or from what send sends before.
func newOwnStream(w http.ResponseWriter, broke func(*fault.Panic)) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w), own: true, broke: broke}
	s.start()
	return s
}

// beginOwn commits the header of an event stream; mu is held.
func (s *stream) beginOwn() {
	s.begin(http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {noCache}}, http.StatusOK)
}

// encodeNote is a progress notification as a JSON-RPC message. token is as it came.
func encodeNote(token jsontext.Value, value float64, msg string) []byte {
	type params struct {
		Token    jsontext.Value `json:"progressToken"`
		Progress float64        `json:"progress"`
		Message  string         `json:"message,omitempty"`
	}
	return encoded(struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  params `json:"params"`
	}{"2.0", "notifications/progress", params{token, value, msg}})
}

// encodeResult is a tool's result as a JSON-RPC response; of the modern era, where server
// isn't nil, with what the SDK adds to each: that it's complete, and who answered. It knows
// the content that render makes.
func encodeResult(id jsontext.Value, r *mcp.CallToolResult, server *mcp.Implementation) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(1024)
	e := encoder{enc: jsontext.NewEncoder(&out, jsontext.AllowInvalidUTF8(true))}
	e.open('{')
	e.text("jsonrpc", "2.0")
	e.value("id", id)
	e.name("result")
	e.open('{')
	e.meta(r.Meta, server)
	e.name("content")
	e.open('[')
	for _, c := range r.Content {
		e.content(c)
	}
	e.token(jsontext.EndArray)
	if raw, ok := r.StructuredContent.(stdjson.RawMessage); ok {
		e.value("structuredContent", jsontext.Value(raw))
	} else if r.StructuredContent != nil {
		return nil, fmt.Errorf("structured content is %T", r.StructuredContent)
	}
	if r.IsError {
		e.name("isError")
		e.token(jsontext.True)
	}
	if server != nil {
		e.text("resultType", "complete")
	}
	e.token(jsontext.EndObject)
	e.token(jsontext.EndObject)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), e.err
}

// encoder writes until something fails.
type encoder struct {
	enc *jsontext.Encoder
	err error
}

func (e *encoder) token(t jsontext.Token) {
	if e.err == nil {
		e.err = e.enc.WriteToken(t)
	}
}

func (e *encoder) open(kind jsontext.Kind) {
	if kind == '[' {
		e.token(jsontext.BeginArray)
	} else {
		e.token(jsontext.BeginObject)
	}
}

func (e *encoder) name(name string) { e.token(jsontext.String(name)) }

func (e *encoder) text(name, v string) {
	e.name(name)
	e.token(jsontext.String(v))
}

func (e *encoder) value(name string, v jsontext.Value) {
	e.name(name)
	if e.err == nil {
		e.err = e.enc.WriteValue(v)
	}
}

func (e *encoder) any(name string, v any) {
	e.name(name)
	if e.err == nil {
		e.err = json.MarshalEncode(e.enc, v)
	}
}

func (e *encoder) meta(m mcp.Meta, server *mcp.Implementation) {
	if len(m) == 0 && server == nil {
		return
	}
	e.name("_meta")
	e.open('{')
	for _, name := range slices.Sorted(maps.Keys(m)) {
		e.any(name, m[name])
	}
	if server != nil {
		e.any(mcp.MetaKeyServerInfo, server)
	}
	e.token(jsontext.EndObject)
}

func (e *encoder) content(c mcp.Content) {
	e.open('{')
	switch c := c.(type) {
	case *mcp.TextContent:
		e.text("type", "text")
		e.text("text", c.Text)
	case *mcp.ImageContent:
		e.text("type", "image")
		e.text("mimeType", c.MIMEType)
		e.any("data", c.Data)
	default:
		e.err = fmt.Errorf("content is %T", c)
	}
	e.token(jsontext.EndObject)
}

// encoded is v, which always can be encoded.
func encoded(v any) []byte {
	b, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(fmt.Sprintf("mcpapi: %T: %v", v, err))
	}
	return b
}
