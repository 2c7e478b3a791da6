package protocol

import (
	"strings"
	"unicode/utf8"
)

// Line makes one clean line of at most limit bytes from text that a peer or a host said:
// control and formatting characters that could forge lines, move a cursor or reorder what
// is read become spaces, invalid UTF-8 becomes U+FFFD, and the cut falls between characters.
func Line(s string, limit int) string {
	if plain(s, limit) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if hidden(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = s[:lastStart(s, limit)]
	}
	return s
}

// lastStart is the greatest index up to at where a character begins.
func lastStart(s string, at int) int {
	for at > 0 && !utf8.RuneStart(s[at]) {
		at--
	}
	return at
}

func plain(s string, limit int) bool {
	if len(s) > limit {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// hidden tells whether r is a control character, a bidirectional override, a line
// separator, a tag character or another mark that isn't seen.
func hidden(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r < 0xa0:
		return true
	case r == 0x061c, r == 0x200b, r == 0x200e, r == 0x200f, r == 0x2028, r == 0x2029, r == 0x2060, r == 0xfeff:
		return true
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return false
}
