package store

import (
	"bytes"
	"database/sql"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/server/internal/store/body"
)

// Limits of stored text, in bytes. Longer text is cut at a rune's border.
const (
	maxName    = 128
	maxClient  = 256
	maxAgent   = 64
	maxKey     = 128
	maxMessage = 2048
	maxDetail  = 1024
	maxArgs    = 256 << 10
)

// clean makes text from outside safe to bind and bounds it: invalid UTF-8 and NUL, which
// Postgres refuses, become U+FFFD.
func clean(s string, limit int) string {
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

// cleanJSON makes a JSON object fit to store, without white space: what isn't JSON becomes
// a string, what is too long a note of its length.
func cleanJSON(b []byte) jsontext.Value {
	switch {
	case len(b) == 0:
		return jsontext.Value("{}")
	case len(b) > maxArgs:
		return body.Marshal(struct {
			Omitted int `json:"drover_omitted_bytes"`
		}{len(b)})
	}
	v := jsontext.Value(bytes.ToValidUTF8(b, []byte("\uFFFD")))
	if len(v) == len(b) && &v[0] == &b[0] {
		v = v.Clone()
	}
	if err := v.Compact(); err != nil {
		return body.Marshal(clean(string(b), maxArgs))
	}
	return v
}

// micros is the one place where a time becomes a stored number: microseconds UTC, NULL
// for the zero time.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// fromMicros reverses micros.
func fromMicros(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// orNull binds "" as NULL.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// blob binds bytes that may not be missing.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
