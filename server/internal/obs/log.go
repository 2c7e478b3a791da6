// Package obs is how a running server is watched: its log, its metrics, and a line for each
// HTTP request.
package obs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxValue bounds one text value in the log, in bytes; longer ones are cut and marked.
const MaxValue = 4096

// NewLogger makes the log that is injected everywhere. format is json or text; level is
// debug, info, warn or error.
//
// Each record is one physical line whatever is in it: hosts, clients and models put text
// into the log, and none of it may forge a record or move a terminal's cursor. Control
// characters, line separators and bidirectional overrides are written as escapes.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var lv slog.Level
	if err := lv.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("the log level %q is not one of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: lv, ReplaceAttr: bound}
	out := &lineWriter{w: w}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(out, opts)), nil
	case "text":
		return slog.New(slog.NewTextHandler(out, opts)), nil
	default:
		return nil, fmt.Errorf("the log format %q is not one of json, text", format)
	}
}

// bound cuts long text values. Everything else is left to the handler and the lineWriter.
func bound(_ []string, a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(cut(v.String()))
	case slog.KindAny:
		if err, ok := v.Any().(error); ok && err != nil {
			a.Value = slog.StringValue(cut(err.Error()))
		}
	}
	return a
}

func cut(s string) string {
	if len(s) <= MaxValue {
		return s
	}
	end := MaxValue
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:end], len(s))
}

// lineWriter escapes what slog's handlers leave: they call Write once a record, and in a
// record such characters stand inside quoted strings only, where \uXXXX means the same.
type lineWriter struct{ w io.Writer }

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	if bytes.IndexFunc(bytes.TrimSuffix(p, []byte{'\n'}), unsafeRune) < 0 {
		return l.w.Write(p)
	}
	body, nl := bytes.CutSuffix(p, []byte{'\n'})
	var b strings.Builder
	b.Grow(len(p) + 32)
	for len(body) > 0 {
		r, n := utf8.DecodeRune(body)
		switch {
		case !unsafeRune(r):
			b.Write(body[:n])
		case r == utf8.RuneError:
			b.WriteString(`\ufffd`)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		body = body[n:]
	}
	if nl {
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(l.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func unsafeRune(r rune) bool {
	if r < 0x80 {
		return r < 0x20 || r == 0x7f
	}
	return !unicode.IsPrint(r) && !unicode.IsSpace(r) || r == 0x85 || r == 0x2028 || r == 0x2029 || r == utf8.RuneError
}
