// Package text makes foreign text safe to show: what hosts, models and clients say.
package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Visible returns s as it can be shown to people and models: valid UTF-8 in which nothing
// moves a cursor, changes a direction or hides. Control characters except newline and tab,
// bidirectional overrides, tag characters and invisible format characters are written as
// the bytes of their UTF-8 form (\x1b, \xe2\x80\xae), as the file tools take them in paths. Joiners that build a script's letters or an emoji
// stay: a zero-width joiner or non-joiner between two letters of a joining script or two
// emoji, and variation selectors after a visible character.
//
// An escape can't be told from the same text written out; who needs the bytes asks the
// host for them.
func Visible(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 32)
	prev := rune(-1)
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n' || r == '\t' || !hides(r) || stays(r, prev, s[i+n:]):
			b.WriteString(s[i : i+n])
		default:
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		prev, i = r, i+n
	}
	return b.String()
}

// plain tells whether s is printable ASCII, newlines and tabs: the usual case.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 0x20 && c != '\n' && c != '\t') || c > 0x7e {
			return false
		}
	}
	return true
}

// hides tells whether r is a character that must not reach a reader as it is.
func hides(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r < 0xa0:
		return true
	case r == 0x00ad, r == 0x034f, r == 0x061c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r == 0x3164, r == 0xffa0:
		return true // soft hyphen, joiners and fillers that show nothing
	case r >= 0x180b && r <= 0x180f, r >= 0xfe00 && r <= 0xfe0f, r >= 0xe0100 && r <= 0xe01ef:
		return true // variation selectors
	case r == 0x2028, r == 0x2029:
		return true // line and paragraph separators: a newline in some readers
	case r >= 0xe0000 && r <= 0xe0fff:
		return true // tags
	case r >= 0xfff0 && r <= 0xfffb:
		return true // interlinear annotation and unassigned ignorables
	case r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
		return true // noncharacters
	}
	return unicode.Is(unicode.Cf, r) && !prependMark(r)
}

// prependMark tells whether r is a format character with a visible shape (Arabic number
// sign and its like).
func prependMark(r rune) bool {
	switch {
	case r >= 0x0600 && r <= 0x0605, r == 0x06dd, r == 0x070f, r == 0x0890, r == 0x0891, r == 0x08e2, r == 0x110bd, r == 0x110cd:
		return true
	}
	return false
}

// stays tells whether a character that usually hides does honest work here: prev stands
// before it, rest follows.
func stays(r, prev rune, rest string) bool {
	next, _ := utf8.DecodeRuneInString(rest)
	switch {
	case r == 0x200c: // zero-width non-joiner: Persian and Indic scripts
		return joins(prev) && joins(next)
	case r == 0x200d: // zero-width joiner
		return (joins(prev) && joins(next)) || (emoji(prev) && emoji(next))
	case r == 0xfe0e || r == 0xfe0f: // text or emoji style
		return emoji(prev) && prev != 0xfe0f && prev != 0xfe0e || (prev >= '0' && prev <= '9' || prev == '#' || prev == '*') && next == 0x20e3
	case r >= 0xfe00 && r <= 0xfe0d, r >= 0xe0100 && r <= 0xe01ef:
		return unicode.Is(unicode.Han, prev)
	case r >= 0x180b && r <= 0x180e:
		return unicode.Is(unicode.Mongolian, prev)
	}
	return false
}

// joins tells whether r belongs to a script in which joiners change the letters' shape.
func joins(r rune) bool {
	return unicode.In(r, unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Devanagari, unicode.Bengali, unicode.Gurmukhi,
		unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Sinhala, unicode.Khmer, unicode.Myanmar)
}

// emoji tells whether r can be part of an emoji sequence.
func emoji(r rune) bool {
	switch {
	case r == 0xfe0f, r == 0x00a9, r == 0x00ae, r == 0x203c, r == 0x2049, r == 0x2122, r == 0x2139, r == 0x3030, r == 0x303d, r == 0x3297, r == 0x3299:
		return true
	case r >= 0x2190 && r <= 0x21ff, r >= 0x2300 && r <= 0x27bf, r >= 0x2934 && r <= 0x2935, r >= 0x2b00 && r <= 0x2bff:
		return true
	case r >= 0x1f000 && r <= 0x1faff:
		return true
	}
	return false
}

// Line returns s as one visible line of at most max bytes, cut at a rune border with "…".
func Line(s string, max int) string {
	if len(s) > 4*max {
		s = s[:4*max]
	}
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return r
	}, s)
	return Cut(Visible(strings.TrimSpace(s)), max)
}

// Cut returns s if it has at most max bytes, else its head with "…", cut at a rune border.
func Cut(s string, max int) string {
	if len(s) <= max {
		return s
	}
	const mark = "…"
	if max < len(mark) {
		return ""
	}
	end := max - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// Quote returns s in quotes, as one visible line of at most max bytes, for an error's text.
func Quote(s string, max int) string {
	return `"` + strings.ReplaceAll(Line(s, max), `"`, `'`) + `"`
}
