package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxLabels bounds the labels of one agent.
const MaxLabels = 32

// ValidLabel tells whether a label is well formed: the key [a-z0-9._/-]{1,63} beginning
// with a letter or digit, the value at most 128 bytes of printable text without commas.
func ValidLabel(key, value string) bool {
	if key == "" || len(key) > 63 || len(value) > 128 || !utf8.ValidString(value) {
		return false
	}
	for i := range len(key) {
		c := key[i]
		alnum := (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')
		if !alnum && (i == 0 || !strings.ContainsRune("._/-", rune(c))) {
			return false
		}
	}
	return !strings.ContainsFunc(value, func(r rune) bool { return r == ',' || !unicode.IsPrint(r) })
}
