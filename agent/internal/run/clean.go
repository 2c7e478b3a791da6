package run

import (
	"strings"

	"github.com/drover-fleet/drover/protocol/text"
)

// Clean makes one line of text that can be shown anywhere: text.Line of s without its
// terminal escape sequences, at most n bytes.
func Clean(s string, n int) string {
	if !strings.ContainsRune(s, 0x1b) {
		return text.Line(s, n)
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] == 0x1b {
			i += escapeLen(s[i:])
			continue
		}
		b.WriteByte(s[i])
		i++
	}
	return text.Line(b.String(), n)
}

// escapeLen is the length of the terminal escape sequence that s begins with.
func escapeLen(s string) int {
	if len(s) < 2 {
		return len(s)
	}
	switch s[1] {
	case '[': // CSI: parameters and intermediates, then one final byte
		for i := 2; i < len(s); i++ {
			if s[i] >= 0x40 && s[i] <= 0x7e {
				return i + 1
			}
		}
		return len(s)
	case ']', 'P', '_', '^', 'X': // a string, ended by BEL or ESC \
		for i := 2; i < len(s); i++ {
			if s[i] == 0x07 {
				return i + 1
			}
			if s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\' {
				return i + 2
			}
		}
		return len(s)
	}
	return 2
}
