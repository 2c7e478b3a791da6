package guard

import (
	"strings"
	"unicode/utf8"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// Escape writes a file name or path as text, see text.EscapeName.
//
// On Windows, where the backslash separates and names can't hold control characters,
// names are given as they are; half a character (an unpaired surrogate) is given as U+FFFD,
// and what's called so can be listed, not opened.
func Escape(name string) string {
	if !escapes {
		return strings.ToValidUTF8(name, "\uFFFD")
	}
	return text.EscapeName(name)
}

// Unescape is the reverse of Escape; text without \xNN stays as it is.
func Unescape(written string) string {
	if !escapes {
		return written
	}
	return text.UnescapeName(written)
}

// Shown is a path in an error text: escaped, and cut so that an error never outgrows its
// answer.
func Shown(path string) string {
	const most = 300
	s := Escape(path)
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func badPath(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeBadArgs, format, args...)
}
