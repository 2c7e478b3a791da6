package mcpapi

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/mcpapi/mark"
)

// stderrRule stands between standard output and standard error.
const stderrRule = "--- stderr ---"

// hostText makes output safe to show below a status line, but for its marks, which come
// last: nothing in it hides or moves (text.Visible). Lines that all end in CRLF end in LF
// here, which notes tell.
func hostText(s string) (shown string, notes []string) {
	if n := strings.Count(s, "\r\n"); n > 0 && n == strings.Count(s, "\n") && n == strings.Count(s, "\r") {
		s = strings.ReplaceAll(s, "\r\n", "\n")
		notes = append(notes, "CRLF line ends")
	}
	shown = text.Visible(s)
	if len(shown) != len(s) {
		notes = append(notes, `control characters shown as \xNN`)
	}
	return shown, notes
}

// processResult shows what a command printed. limit bounds the whole text, in bytes.
func processResult(res dispatch.Result, limit int) (*mcp.CallToolResult, error) {
	var out capability.ProcessOut
	if err := decodeOutput(res.Output, &out); err != nil {
		return nil, err
	}
	p := newProcessText(res, out)
	shown, cut := p.fit(limit)
	m := metaOf(res)
	m.Signal, m.Truncated = text.Line(out.Signal, 32), out.Truncated || cut
	m.StdoutBytes, m.StderrBytes, m.DurationMS = &out.StdoutBytes, &out.StderrBytes, &out.DurationMS
	m.ExitCode = &out.ExitCode
	return textResult(shown, res.Err != nil, m), nil
}

// processText is what a command printed, before it's cut and marked.
type processText struct {
	stdout, stderr string
	fault          string // how the call failed, in the host's words; "" if it didn't
	status         func(notes ...string) string
}

func newProcessText(res dispatch.Result, out capability.ProcessOut) processText {
	stdout, notes := hostText(out.Stdout)
	stderr, more := hostText(out.Stderr)
	for _, n := range more {
		if !slices.Contains(notes, n) {
			notes = append(notes, n)
		}
	}
	if out.Truncated {
		notes = append(notes, fmt.Sprintf("truncated: %d bytes of stdout and %d of stderr in all", out.StdoutBytes, out.StderrBytes))
		if out.Kept {
			notes = append(notes, keptNote(res, out))
		}
	}
	p := processText{stdout: stdout, stderr: stderr, status: func(late ...string) string {
		return statusLine(res, processEnd(res, out), time.Duration(out.DurationMS)*time.Millisecond, slices.Concat(notes, late)...)
	}}
	if res.Err != nil {
		p.fault = visibleError(res.Err)
	}
	return p
}

// fit writes the whole text in at most limit bytes: the middles of stdout and stderr are cut
// where there's too much, and each keeps its half or what the other leaves.
func (p processText) fit(limit int) (shown string, cut bool) {
	cutFault := text.Cut(p.fault, min(2000, limit/2))
	fault, stdout, stderr := mark.Lines(cutFault), mark.Lines(p.stdout), mark.Lines(p.stderr)
	marks := len(fault) - len(cutFault)
	whole := p.join(p.head(marks+len(stdout)-len(p.stdout)+len(stderr)-len(p.stderr)), fault, stdout, stderr)
	if len(whole) <= limit {
		return whole, false
	}
	// What will be marked after the cut isn't known before: the note has its room anyway.
	room := limit - len(p.join(p.head(1), fault, "", "")) - len(stderrRule) - 2
	forErr := min(len(stderr), max(room/2, room-len(stdout)))
	stdout, n := middle(p.stdout, room-forErr)
	stderr, m := middle(p.stderr, forErr)
	return p.join(p.head(marks+n+m), fault, stdout, stderr), true
}

// head is the status line above a text that has so many marks.
func (p processText) head(marks int) string {
	if marks > 0 {
		return p.status(mark.Note)
	}
	return p.status()
}

func (p processText) join(head, fault, stdout, stderr string) string {
	var b strings.Builder
	b.Grow(len(head) + len(fault) + len(stdout) + len(stderr) + len(stderrRule) + 4)
	b.WriteString(head + "\n")
	if fault != "" {
		b.WriteString(fault + "\n")
	}
	b.WriteString(stdout)
	if stderr != "" {
		if stdout != "" && !strings.HasSuffix(stdout, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(stderrRule + "\n" + stderr)
	}
	return b.String()
}

// processEnd says how a command ended.
func processEnd(res dispatch.Result, out capability.ProcessOut) string {
	switch {
	case res.Err == nil:
		return fmt.Sprintf("exit %d", out.ExitCode)
	case res.Err.Code == protocol.CodeToolFailed && out.Signal != "":
		return "signal " + statusWord(out.Signal, 32)
	default:
		return string(res.State)
	}
}

// cutNote stands where the middle of an output was left out.
const cutNote = "\n[drover: the middle of this output is not shown]\n"

// middle marks s; if it's longer than limit then, it keeps the head and the tail of s, marked,
// in at most limit bytes with the note between. marks counts the marks.
func middle(s string, limit int) (shown string, marks int) {
	if whole := mark.Lines(s); len(whole) <= limit {
		return whole, len(whole) - len(s)
	}
	for keep := min(limit-len(cutNote), len(s)); keep >= 2; {
		from, to := keep/2, len(s)-keep/2
		for from > 0 && !utf8.RuneStart(s[from]) {
			from--
		}
		for to < len(s) && !utf8.RuneStart(s[to]) {
			to++
		}
		head, tail := mark.Lines(s[:from]), mark.Lines(s[to:])
		over := len(head) + len(cutNote) + len(tail) - limit
		if over <= 0 {
			return head + cutNote + tail, len(head) + len(tail) - from - (len(s) - to)
		}
		keep -= over
	}
	return "", 0
}

// imageTypes are the images that models are shown.
var imageTypes = regexp.MustCompile(`^image/(?:png|jpeg|gif|webp)$`)

// maxImage bounds an image that is shown, in bytes.
const maxImage = 3 << 20

// fileResult shows a part of a file: text below a status line, an image as an image,
// anything else as base64. limit bounds the whole text, in bytes.
func fileResult(res dispatch.Result, limit int) (*mcp.CallToolResult, error) {
	var out capability.FSReadOut
	if err := decodeOutput(res.Output, &out); err != nil {
		return nil, err
	}
	m := metaOf(res)
	m.Size = &out.Size
	if isSHA256(out.SHA256) {
		m.SHA256 = out.SHA256
	}
	switch out.Kind {
	case "text":
		return textFile(res, out, m, limit), nil
	case "image", "binary":
		data, err := base64.StdEncoding.DecodeString(out.Data)
		if err != nil {
			return nil, fmt.Errorf("the file's content: %w", err)
		}
		if out.Kind == "image" && imageTypes.MatchString(out.MIME) && len(data) <= maxImage {
			r := textResult(fileStatus(res, out, m, out.MIME), res.Err != nil, m)
			r.Content = append(r.Content, &mcp.ImageContent{Data: data, MIMEType: out.MIME})
			return r, nil
		}
		return binaryFile(res, out, m, limit), nil
	default:
		return nil, fmt.Errorf("the file's kind is none of text, image, binary")
	}
}

func textFile(res dispatch.Result, out capability.FSReadOut, m callMeta, limit int) *mcp.CallToolResult {
	body, notes := hostText(out.Text)
	m.NextOffset, m.Truncated = out.NextOffset, out.Truncated
	// The status line grows by what a cut adds to it.
	room := max(0, limit-len(fileStatus(res, out, m, append(slices.Clone(notes), mark.Note)...))-120)
	shown := mark.Lines(body)
	if len(shown) > room {
		whole := out
		for keep := min(room, len(body)); ; keep = len(body) - (len(shown) - room) {
			body, out = cutText(body, whole, keep)
			if shown = mark.Lines(body); len(shown) <= room {
				break
			}
		}
		m.NextOffset, m.Truncated = out.NextOffset, true
		if out.NextOffset == 0 {
			notes = append(notes, "cut to fit: ask with a smaller limit or a larger max_output for the rest")
		}
	}
	if len(shown) > len(body) {
		notes = append(notes, mark.Note)
	}
	return textResult(fileStatus(res, out, m, notes...)+"\n"+shown, res.Err != nil, m)
}

// cutText cuts a file's text at its end, where lines are counted after a whole line.
func cutText(body string, out capability.FSReadOut, room int) (string, capability.FSReadOut) {
	for room > 0 && room < len(body) && !utf8.RuneStart(body[room]) {
		room--
	}
	cut := body[:room]
	out.NextOffset, out.NextByteOffset = 0, 0
	if end := strings.LastIndexByte(cut, '\n'); end >= 0 && out.Unit == "lines" {
		cut = cut[:end+1]
		out.NextOffset = out.Offset + int64(strings.Count(cut, "\n"))
	} else if strings.HasPrefix(out.Text, cut) { // nothing was escaped: bytes can be counted
		out.NextByteOffset = out.ByteOffset + int64(len(cut))
		if out.Unit == "bytes" {
			out.NextOffset = out.NextByteOffset
		}
	}
	return cut, out
}

func binaryFile(res dispatch.Result, out capability.FSReadOut, m callMeta, limit int) *mcp.CallToolResult {
	m.NextOffset, m.Truncated = out.NextOffset, out.Truncated
	status := fileStatus(res, out, m, "base64 of "+statusWord(orWord(out.MIME, "binary data"), 64))
	// The decoder lets line ends pass, and lines could begin with anything.
	out.Data = strings.NewReplacer("\r", "", "\n", "").Replace(out.Data)
	if len(out.Data) > max(limit, capability.DefaultOutput)*4/3+4 {
		return textResult(fmt.Sprintf("%s: the file's content is too large to be shown (%d bytes); ask for a part with unit bytes, offset and limit\n%s",
			protocol.CodeTooLarge, out.Size, status), true, m)
	}
	return textResult(status+"\n"+out.Data, res.Err != nil, m)
}

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return s
}

// fileStatus is the first line of a file's text: what part it is, and how to go on.
func fileStatus(res dispatch.Result, out capability.FSReadOut, m callMeta, notes ...string) string {
	parts := []string{fmt.Sprintf("%d bytes in all", out.Size)}
	unit := "line"
	if out.Unit == "bytes" {
		unit = "byte"
	}
	if out.Offset != 0 {
		parts = append(parts, fmt.Sprintf("from %s %d", unit, out.Offset))
	}
	switch {
	case out.NextOffset != 0 && unit == "byte":
		parts = append(parts, fmt.Sprintf("more at offset %d with unit bytes", out.NextOffset))
	case out.NextOffset != 0:
		parts = append(parts, fmt.Sprintf("more at offset %d", out.NextOffset))
	}
	if out.NextByteOffset != 0 && unit == "line" {
		parts = append(parts, fmt.Sprintf("a line was cut; it goes on at offset %d with unit bytes", out.NextByteOffset))
	}
	if m.SHA256 != "" {
		parts = append(parts, "sha256 "+m.SHA256)
	}
	parts = append(parts, notes...)
	return statusLine(res, parts[0], res.FinishedAt.Sub(res.CreatedAt), parts[1:]...)
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}
