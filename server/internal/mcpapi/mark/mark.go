// Package mark keeps what a host says apart from what Drover says, in the text of a tool's answer.
package mark

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Note tells of marks in the status line.
const Note = `a backslash marks output lines that look like Drover's own`

// Lines puts a backslash before each line of a host's text that equals one of Drover's own
// lines or could be taken for one: a status line, the rule before standard error, a note.
// It has to come last, over what is shown: an escape or a cut can make such a line, too.
func Lines(s string) string {
	var b strings.Builder
	from := 0
	for at := 0; at < len(s); {
		end := len(s)
		if n := strings.IndexByte(s[at:], '\n'); n >= 0 {
			end = at + n
		}
		if LooksOwn(s[at:end]) {
			b.WriteString(s[from:at])
			b.WriteByte('\\')
			from = at
		}
		at = end + 1
	}
	if from == 0 && b.Len() == 0 {
		return s
	}
	b.WriteString(s[from:])
	return b.String()
}

// LooksOwn tells whether a line could be taken for one of Drover's own. White space before
// it counts for nothing, nor do marks: a line that had one already gets another, so that a
// mark can't be forged either.
func LooksOwn(line string) bool {
	rest := strings.TrimLeftFunc(line, func(r rune) bool { return blank(r) || r == '\\' })
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case size == 0:
		return false
	case opens(r) && looksBracketed(r, rest[size:]):
		return true
	case dash(r) && looksRule(rest):
		return true
	}
	return looksLeftOut(rest)
}

// looksBracketed judges what follows an opening bracket: a status line has "call" in it, or
// its dots; a note begins with the program's name. Round ones open so much other text that
// there both must be.
func looksBracketed(open rune, rest string) bool {
	if _, ok := spelt(rest, "drover"); ok {
		return true
	}
	dots, call := strings.ContainsFunc(rest, MidDot), hasWord(rest, "call")
	if open == '(' {
		return dots && call
	}
	return dots || call
}

// looksRule judges a line that begins with a dash: the rule is dashes, "stderr", dashes. An
// option in a help text, --stderr FILE, is none, nor an item of a list.
func looksRule(line string) bool {
	rest := strings.TrimLeftFunc(line, dashOrBlank)
	after, ok := spelt(rest, "stderr")
	if !ok {
		return false
	}
	if before := line[:len(line)-len(rest)]; before != "-" && before != "--" && before != "- " {
		return true
	}
	after = strings.TrimLeftFunc(after, blank)
	tail := strings.TrimLeftFunc(after, dash)
	return strings.TrimLeftFunc(tail, dashOrBlank) == "" || utf8.RuneCountInString(after[:len(after)-len(tail)]) > 1
}

func dashOrBlank(r rune) bool { return dash(r) || blank(r) }

// looksLeftOut judges a line for the agent's note between the head and the tail of a long
// output: … 123 bytes left out …
func looksLeftOut(line string) bool {
	rest := strings.TrimLeftFunc(line, func(r rune) bool {
		return dashOrBlank(r) || opens(r) || r == '…' || r == '⋯' || r == '‥' || r == '.'
	})
	after := strings.TrimLeftFunc(rest, func(r rune) bool { return unicode.IsDigit(r) || r == ',' || r == '.' || blank(r) })
	if len(after) == len(rest) {
		return false
	}
	_, ok := spelt(after, "bytesleftout")
	return ok
}

// blank tells whether r shows nothing but room. What shows nothing at all has been escaped.
func blank(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Zs, r) || r == '\u2800' }

// opens tells whether r looks like an opening bracket. The curly one doesn't, and begins
// each line of JSON.
func opens(r rune) bool {
	return r != '{' && unicode.Is(unicode.Ps, r) || r >= 0x23a1 && r <= 0x23a3 || r == '⎧' || r == '⁅'
}

func dash(r rune) bool {
	switch {
	case unicode.Is(unicode.Pd, r), r == '_', r == '=', r == '~', r == '\u00af', r == '\u02c9', r == '\u2043', r == '\u2212', r == '\u23af', r == '\u30fc', r == '\u4e00':
		return true
	}
	return r >= 0x2500 && r <= 0x254d // box drawings
}

// MidDot tells whether r looks like the dot between a status line's parts.
func MidDot(r rune) bool {
	switch r {
	case '·', '•', '‧', '∙', '⋅', '・', '･', '●', '⸱', '⸳', '᛫', '◦', '\u0387', '\u0701', '\U00010101':
		return true
	}
	return false
}

// spelt tells whether s begins with word (lower case), whatever the case and the white space
// before and between the letters, and returns what follows it.
func spelt(s, word string) (rest string, ok bool) {
	for _, want := range word {
		s = strings.TrimLeftFunc(s, blank)
		r, size := utf8.DecodeRuneInString(s)
		if size == 0 || unicode.ToLower(unwide(r)) != want {
			return "", false
		}
		s = s[size:]
	}
	return s, true
}

// hasWord tells whether s has word (lower case) as a word of its own, in any case. It tries
// only where the word's first letter is, so that a line of nothing but blanks costs little.
func hasWord(s, word string) bool {
	before := ' '
	for i, r := range s {
		if unicode.ToLower(unwide(r)) == rune(word[0]) && !inWord(before) {
			if rest, ok := spelt(s[i:], word); ok {
				after, size := utf8.DecodeRuneInString(rest)
				if size == 0 || !inWord(after) {
					return true
				}
			}
		}
		before = r
	}
	return false
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

// unwide is the ASCII letter that a full-width one looks like.
func unwide(r rune) rune {
	if r >= 0xff01 && r <= 0xff5e {
		return r - 0xfee0
	}
	return r
}
