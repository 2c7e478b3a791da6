package mcpapi

import (
	"fmt"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/mcpapi/mark"
)

// keptNote says where the rest of a cut output is.
func keptNote(res dispatch.Result, out capability.ProcessOut) string {
	what := "full output"
	if out.KeptPartly {
		what = "only the beginning of the output was"
	}
	return fmt.Sprintf(`%s kept for a day: shell_output(call_id="%s", offset=0)`, what, res.CallID)
}

// statusRoom is what a page's status line and marks may add to the limit, in bytes.
const statusRoom = 1024

// outputResult shows a page of what a command printed. limit bounds the text below the status
// line, in bytes.
func outputResult(res dispatch.Result, limit int) (*mcp.CallToolResult, error) {
	limit += statusRoom
	var out capability.ShellOutputOut
	if err := decodeOutput(res.Output, &out); err != nil {
		return nil, err
	}
	whole, again := out, false
	shown := ""
	for {
		body, notes := hostText(out.Text)
		if shown = mark.Lines(body); len(shown) > len(body) {
			notes = append(notes, mark.Note)
		}
		shown = outputStatus(res, out, again, notes...) + "\n" + shown
		if len(shown) <= limit || out.Text == "" {
			break
		}
		// Escapes and marks have made it longer than the agent could know.
		keep := min(len(out.Text)-1, len(out.Text)*limit/len(shown))
		for keep > 0 && !utf8.RuneStart(out.Text[keep]) {
			keep--
		}
		out.Text, out.EOF = out.Text[:keep], false
		// With bytes written as \xNN, what is shown doesn't tell how many bytes it was.
		if again = out.Invalid; !again {
			out.NextOffset = whole.Offset + int64(keep)
		}
	}
	m := metaOf(res)
	m.Size, m.Truncated = &out.Total, !out.EOF
	if !out.EOF && !again {
		m.NextOffset = out.NextOffset
	}
	return textResult(shown, res.Err != nil, m), nil
}

// outputStatus is the first line of a page: what part it is, and how to go on.
func outputStatus(res dispatch.Result, out capability.ShellOutputOut, again bool, notes ...string) string {
	parts := []string{fmt.Sprintf("bytes %d to %d of %d", out.Offset, out.NextOffset, out.Total)}
	switch {
	case again:
		parts = append(parts, fmt.Sprintf("cut to fit: ask again at offset %d with a smaller limit", out.Offset))
	case out.EOF:
		parts = append(parts, "the end")
	case out.NextOffset >= out.Total:
		parts = append(parts, fmt.Sprintf("it still runs: more may come at offset %d", out.NextOffset))
	default:
		parts = append(parts, fmt.Sprintf("more at offset %d", out.NextOffset))
	}
	if out.Partly {
		parts = append(parts, "only the beginning was kept")
	}
	if out.Invalid {
		parts = append(parts, `bytes that aren't text shown as \xNN`)
	}
	end := statusWord(out.Stream, 16) + " of " + statusWord(out.CallID, 64)
	return statusLine(res, end, res.FinishedAt.Sub(res.CreatedAt), append(parts, notes...)...)
}
