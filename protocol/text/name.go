package text

import (
	"strings"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// EscapeName writes a file name or path as text that is valid UTF-8 and shows nothing but what
// it is: bytes that aren't UTF-8, control characters, and characters that turn the reading
// direction or break lines become \xNN, byte by byte. A backslash that would be mistaken
// for such an escape becomes \x5c. UnescapeName reverses it.
//
// It's the written form of names on systems where names are bytes; on Windows, where the
// backslash separates and names can't hold control characters, names are given as they are.
func EscapeName(name string) string {
	if plainName(name) {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && n == 1, deceives(r), r == '\\' && isEscape(name[i:]):
			for _, c := range []byte(name[i : i+n]) {
				escapeByte(&b, c)
			}
		default:
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	return b.String()
}

// UnescapeName is the reverse of EscapeName; text without \xNN stays as it is.
func UnescapeName(text string) string {
	if !strings.Contains(text, `\x`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		if isEscape(text[i:]) {
			b.WriteByte(unhex(text[i+2])<<4 | unhex(text[i+3]))
			i += 4
			continue
		}
		b.WriteByte(text[i])
		i++
	}
	return b.String()
}

// EscapeInvalid writes the bytes of a path that aren't UTF-8 as \xNN and leaves the rest,
// escapes that stand in it too.
func EscapeInvalid(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); {
		r, n := utf8.DecodeRuneInString(path[i:])
		if r == utf8.RuneError && n == 1 {
			escapeByte(&b, path[i])
		} else {
			b.WriteString(path[i : i+n])
		}
		i += n
	}
	return b.String()
}

func escapeByte(b *strings.Builder, c byte) {
	b.WriteString(`\x`)
	b.WriteByte(hexDigits[c>>4])
	b.WriteByte(hexDigits[c&15])
}

func plainName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '\\' {
			return false
		}
	}
	return true
}

// deceives tells whether showing r would show something else than a name: C0 and C1
// controls, DEL, line and paragraph separators, and bidirectional controls.
func deceives(r rune) bool {
	return r < 0x20 || r >= 0x7f && r <= 0x9f || r == 0x061c || r == 0x200e || r == 0x200f ||
		r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}

func isEscape(s string) bool {
	return len(s) >= 4 && s[0] == '\\' && s[1] == 'x' && unhex(s[2]) < 16 && unhex(s[3]) < 16
}

func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}
