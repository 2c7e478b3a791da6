package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
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

// CheckLabels tells what is wrong with an operator's labels, as bad_args: at most MaxLabels,
// each of the form of ValidLabel.
func CheckLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return Errorf(protocol.CodeBadArgs, "an agent has at most %d labels", MaxLabels)
	}
	for k, v := range labels {
		if !ValidLabel(k, v) {
			return Errorf(protocol.CodeBadArgs, "the label %s is malformed: keys are a-z, 0-9, '.', '_', '-', '/', at most 63 characters, the first a letter or digit; values at most 128 printable ones without commas", text.Quote(k, 63))
		}
	}
	return nil
}
