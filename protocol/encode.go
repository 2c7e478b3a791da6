package protocol

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol/strict"
)

// Encode writes a frame. Raw members (args, result) are copied byte for byte, never
// formatted again: the seal and the record's commitments are over exactly these bytes.
func Encode(v any) ([]byte, error) {
	switch f := v.(type) {
	case *Request:
		return f.encode()
	case *Response:
		return f.encode()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("protocol: encode: %w", err)
	}
	return b, nil
}

// checkRaw refuses raw bytes that would break the frame around them or come out of it
// changed: white space at the ends is lost in decoding.
func checkRaw(name string, raw jsontext.Value, object bool) error {
	if len(raw) == 0 || raw[0] <= ' ' || raw[len(raw)-1] <= ' ' || object && raw[0] != '{' {
		return fmt.Errorf("protocol: encode: %s: not a JSON value without white space around it", name)
	}
	if err := strict.Check(raw, strict.Limits{MaxDepth: MaxDepth - 1}); err != nil {
		return fmt.Errorf("protocol: encode: %s: %w", name, err)
	}
	return nil
}

// builder writes the members of one object; the first error stays.
type builder struct {
	b   []byte
	err error
}

func (w *builder) name(n string) {
	if len(w.b) > 1 {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, n...)
	w.b = append(w.b, '"', ':')
}

func (w *builder) str(n, v string) {
	w.name(n)
	var err error
	if w.b, err = jsontext.AppendQuote(w.b, v); err != nil && w.err == nil {
		w.err = fmt.Errorf("protocol: encode: %s: %w", n, err)
	}
}

func (w *builder) opt(n, v string) {
	if v != "" {
		w.str(n, v)
	}
}

func (w *builder) num(n string, v int64) {
	w.name(n)
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *builder) raw(n string, v []byte) {
	w.name(n)
	w.b = append(w.b, v...)
}

func (w *builder) any(n string, v any) {
	b, err := json.Marshal(v)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("protocol: encode: %s: %w", n, err)
	}
	w.raw(n, b)
}

func (w *builder) done() ([]byte, error) {
	return append(w.b, '}'), w.err
}

func (r *Request) encode() ([]byte, error) {
	if err := checkRaw("args", r.Args, true); err != nil {
		return nil, err
	}
	w := builder{b: make([]byte, 1, 512+len(r.Args))}
	w.b[0] = '{'
	w.str("type", string(TypeRequest))
	w.str("id", r.ID)
	w.str("tool", r.Tool)
	w.raw("args", r.Args)
	w.str("seal", r.Seal)
	c := builder{b: append(make([]byte, 0, 128), '{')}
	c.str("principal", r.Caller.Principal)
	c.str("user", r.Caller.User)
	c.str("kind", r.Caller.Kind)
	c.opt("client", r.Caller.Client)
	if r.Caller.Admin {
		c.raw("admin", []byte("true"))
	}
	caller, err := c.done()
	w.raw("caller", caller)
	w.num("deadline_ms", r.DeadlineMS)
	if r.Progress {
		w.raw("progress", []byte("true"))
	}
	if r.Approval != nil {
		w.any("approval", r.Approval)
	}
	if r.ApprovalRequired != nil {
		w.any("approval_required", r.ApprovalRequired)
	}
	if r.NotAfterMS != 0 {
		w.num("not_after", r.NotAfterMS)
	}
	if r.ToolVersion != 0 {
		w.num("tool_version", int64(r.ToolVersion))
	}
	w.opt("traceparent", r.Traceparent)
	b, werr := w.done()
	return b, errors.Join(err, werr)
}

func (r *Response) encode() ([]byte, error) {
	w := builder{b: make([]byte, 1, 256+len(r.Result))}
	w.b[0] = '{'
	w.str("type", string(TypeResponse))
	w.str("id", r.ID)
	if r.Result != nil {
		if err := checkRaw("result", r.Result, false); err != nil {
			return nil, err
		}
		w.raw("result", r.Result)
	}
	if r.Error != nil {
		w.any("error", r.Error)
	}
	w.opt("receipt", r.Receipt)
	w.num("took_us", r.TookUS)
	return w.done()
}
