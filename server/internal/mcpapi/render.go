package mcpapi

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/mcpapi/mark"
)

// metaCall is where programs find what a result's text says: MCP hosts don't show it to
// the model.
const metaCall = "io.github.drover-fleet/call"

// callMeta are the machine fields of a forwarded call's result.
type callMeta struct {
	CallID    fleet.CallID  `json:"call_id,omitzero"`
	AgentID   fleet.AgentID `json:"agent_id,omitzero"`
	Tool      string        `json:"tool,omitzero"`
	State     fleet.State   `json:"state,omitzero"`
	Code      protocol.Code `json:"code,omitzero"`
	Reason    string        `json:"reason,omitzero"`
	Joined    bool          `json:"joined,omitzero"`
	ExitCode  *int          `json:"exit_code,omitzero"`
	Signal    string        `json:"signal,omitzero"`
	Truncated bool          `json:"truncated,omitzero"`
	// Bytes written by the command, also those not returned.
	StdoutBytes *int64 `json:"stdout_bytes,omitzero"`
	StderrBytes *int64 `json:"stderr_bytes,omitzero"`
	DurationMS  *int64 `json:"duration_ms,omitzero"`
	// Of a file.
	Size       *int64 `json:"size,omitzero"`
	NextOffset int64  `json:"next_offset,omitzero"`
	SHA256     string `json:"sha256,omitzero"`
	// Of a queued call, RFC 3339; of one whose outcome is unknown.
	QueuedUntil string `json:"queued_until,omitzero"`
	Evidence    string `json:"evidence,omitzero"`
}

func metaOf(res dispatch.Result) callMeta {
	m := callMeta{CallID: res.CallID, AgentID: res.Agent, Tool: res.Tool, State: res.State, Joined: res.Joined, Evidence: text.Line(res.Evidence, 512)}
	if !res.QueuedUntil.IsZero() {
		m.QueuedUntil = res.QueuedUntil.UTC().Format(time.RFC3339)
	}
	if res.Err != nil {
		m.Code, m.Reason = res.Err.Code, text.Line(res.Err.Reason, 64)
	}
	return m
}

func textResult(s string, isError bool, m callMeta) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Content: []mcp.Content{&mcp.TextContent{Text: s}}, IsError: isError, Meta: mcp.Meta{metaCall: m},
	}
}

// errorResult shows a refusal: no call was made.
func errorResult(tool string, fe *fleet.Error) *mcp.CallToolResult {
	return textResult(errorText(fe), true, callMeta{Tool: tool, Code: fe.Code, Reason: text.Line(fe.Reason, 64)})
}

// errorText is an error as a model reads it: the code, then what to do next. A message may
// be a host's.
func errorText(fe *fleet.Error) string { return mark.Lines(visibleError(fe)) }

// visibleError is errorText before it's cut and marked.
func visibleError(fe *fleet.Error) string {
	code := string(fe.Code)
	if fe.Reason != "" {
		code += " (" + text.Line(fe.Reason, 64) + ")"
	}
	return code + ": " + text.Visible(fe.Message)
}

// result shows a call's end, or where it stands. limit bounds the text of command and file
// tools, in bytes.
func (a *API) result(def *capability.Definition, res dispatch.Result, limit int) *mcp.CallToolResult {
	if !res.State.Final() {
		return handle(def, res)
	}
	res.Err = withEvidence(res)
	if len(res.Output) == 0 {
		if res.Err == nil { // a result that is no longer kept
			res.Err = fleet.Errorf(protocol.CodeNotFound, "the call ended as %s, but its result is no longer kept", res.State)
		}
		return textResult(errorText(res.Err)+"\n"+statusLine(res, "", res.FinishedAt.Sub(res.CreatedAt)), true, metaOf(res))
	}
	var out *mcp.CallToolResult
	var err error
	switch def.Render {
	case capability.RenderProcess:
		out, err = processResult(res, limit)
	case capability.RenderFile:
		out, err = fileResult(res, limit)
	case capability.RenderOutput:
		out, err = outputResult(res, limit)
	default:
		out, err = jsonResult(res)
	}
	if err != nil {
		a.log.Warn("an agent's result could not be shown", "call_id", res.CallID, "agent_id", res.Agent, "tool", res.Tool, "err", err)
		res.Err = &fleet.Error{Code: protocol.CodeToolFailed, Reason: "bad_result", Message: fmt.Sprintf("agent %s ran %s but its answer could not be read; is the agent genuine and up to date?", res.Agent, res.Tool)}
		return textResult(errorText(res.Err)+"\n"+statusLine(res, "", 0), true, metaOf(res))
	}
	return out
}

// handle shows a call that's still open. It's no error, except in the letter for tools
// with an output schema: clients refuse a success without structured content.
func handle(def *capability.Definition, res dispatch.Result) *mcp.CallToolResult {
	return textResult(stillOpen(res), def.Render == capability.RenderJSON, metaOf(res))
}

// withEvidence is a call's error with what was learnt after it was recorded: the outcome
// stays unknown, but its reader may know better.
func withEvidence(res dispatch.Result) *fleet.Error {
	if res.Err == nil || res.Evidence == "" {
		return res.Err
	}
	fe := *res.Err
	fe.Message += ". Learnt since: " + text.Line(res.Evidence, 512)
	return &fe
}

func stillOpen(res dispatch.Result) string {
	switch {
	case res.State == fleet.Queued && res.QueuedUntil.IsZero():
		return fmt.Sprintf(`waiting: %s on agent %s, as call %s, has not begun: it waits for its turn on the host, where as many calls run as may at once, or whose connection is just being made anew. This is not a failure, and calling again would run it twice.
Next: call_result with {"call_id":"%s","wait_seconds":50} waits for its result; call_cancel with the call_id takes it back.`, res.Tool, res.Agent, res.CallID, res.CallID)
	case res.State == fleet.Queued:
		return fmt.Sprintf(`queued: %s for agent %s, as call %s, until %s. The host was offline when the call was made. The call runs once if the host connects before that time, and never after it. Nothing has run yet; this is not a failure, and calling again would queue it twice.
Next: call_result with {"call_id":"%s"} tells where it stands; call_cancel with the call_id takes it back.`,
			res.Tool, res.Agent, res.CallID, res.QueuedUntil.UTC().Format("2006-01-02 15:04:05 UTC"), res.CallID)
	}
	return fmt.Sprintf(`still running: %s on agent %s, as call %s. It goes on; this is not a failure, and starting it again would run it twice.
Next: call_result with {"call_id":"%s","wait_seconds":50} waits for its result; call_cancel with the call_id ends it.`, res.Tool, res.Agent, res.CallID, res.CallID)
}

// jsonResult shows a result as structured content, with a copy as text for clients that
// don't know it. A failed call's is text alone.
func jsonResult(res dispatch.Result) (*mcp.CallToolResult, error) {
	v, err := visibleJSON(res.Output)
	if err != nil {
		return nil, err
	}
	if res.Err != nil {
		return textResult(errorText(res.Err)+"\n"+statusLine(res, "", res.FinishedAt.Sub(res.CreatedAt))+"\n"+string(v), true, metaOf(res)), nil
	}
	out := textResult(string(v), false, metaOf(res))
	out.StructuredContent = stdjson.RawMessage(v)
	return out, nil
}

// visibleJSON makes every string of an object text.Visible, so that a file's name can't
// hide something from a reader.
func visibleJSON(v jsontext.Value) (jsontext.Value, error) {
	if v.Kind() != '{' {
		return nil, fmt.Errorf("the result is no object")
	}
	if plainJSON(v) {
		return v, nil
	}
	var out bytes.Buffer
	out.Grow(len(v) + 64)
	dec, enc := jsontext.NewDecoder(bytes.NewReader(v)), jsontext.NewEncoder(&out)
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("the result: %w", err)
		}
		if tok.Kind() == '"' {
			tok = jsontext.String(text.Visible(tok.String()))
		}
		if err := enc.WriteToken(tok); err != nil {
			return nil, fmt.Errorf("the result: %w", err)
		}
		if dec.StackDepth() == 0 {
			return jsontext.Value(bytes.TrimSpace(out.Bytes())), nil
		}
	}
}

// plainJSON tells whether v is one line and no string of it holds anything but printable
// ASCII, newlines and tabs: the usual case.
func plainJSON(v []byte) bool {
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c >= 0x7f, c < 0x20:
			return false
		case c == '\\':
			i++
			if i < len(v) && strings.IndexByte(`"\/nt`, v[i]) < 0 {
				return false
			}
		}
	}
	return true
}

// statusLine is the first line of a text result: who ran what, and how it ended.
// [web-01 · root · exit 0 · 0.42 s · call 0192…]
func statusLine(res dispatch.Result, end string, took time.Duration, notes ...string) string {
	parts := []string{string(res.Agent)}
	if res.RunAs != "" {
		parts = append(parts, statusWord(res.RunAs, 64))
	}
	if end != "" {
		parts = append(parts, end)
	} else if res.Err != nil {
		parts = append(parts, string(res.State))
	}
	if took > 0 {
		parts = append(parts, duration(took))
	}
	parts = append(parts, notes...)
	if res.Joined {
		parts = append(parts, "joined an earlier call")
	}
	parts = append(parts, "call "+string(res.CallID))
	return "[" + strings.Join(parts, " · ") + "]"
}

// statusWord is a host's word as a part of a status line, which it can't end.
func statusWord(s string, max int) string {
	return strings.Map(func(r rune) rune {
		switch {
		case mark.MidDot(r):
			return -1
		case r == '[':
			return '('
		case r == ']':
			return ')'
		}
		return r
	}, text.Line(s, max))
}

func duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
}

// decodeOutput decodes a result that dispatch has made to fit its schema.
func decodeOutput(v jsontext.Value, out any) error {
	if err := json.Unmarshal(v, out); err != nil {
		return fmt.Errorf("the result: %w", err)
	}
	return nil
}
