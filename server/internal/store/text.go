package store

import (
	"database/sql"
	"time"
)

// Limits of stored text, in bytes. Longer text is cut at a rune's border.
const (
	maxName    = 128
	maxClient  = 256
	maxAgent   = 64
	maxKey     = 128
	maxMessage = 2048
	maxDetail  = 1024
)

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
