package body

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxArgs bounds the stored arguments of a call, in bytes.
const maxArgs = 256 << 10

// Clean makes text from outside safe to bind and bounds it: invalid UTF-8 and NUL, which
// Postgres refuses, become U+FFFD.
func Clean(s string, limit int) string {
	plain := len(s) <= limit
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] != 0 && s[i] < utf8.RuneSelf
	}
	if plain {
		return s
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// CleanJSON makes a JSON object fit to store, without white space: what isn't JSON becomes
// a string, what is too long a note of its length.
func CleanJSON(b []byte) jsontext.Value {
	switch {
	case len(b) == 0:
		return jsontext.Value("{}")
	case len(b) > maxArgs:
		return Marshal(struct {
			Omitted int `json:"drover_omitted_bytes"`
		}{len(b)})
	}
	v := jsontext.Value(bytes.ToValidUTF8(b, []byte("\uFFFD")))
	if len(v) == len(b) && &v[0] == &b[0] {
		v = v.Clone()
	}
	if err := v.Compact(); err != nil {
		return Marshal(Clean(string(b), maxArgs))
	}
	return v
}
