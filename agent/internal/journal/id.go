package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strings"
)

// ID stands for a call id: ids may be long, and a journal's slots are short.
type ID struct {
	Hash [16]byte
	// Order is the beginning of a UUIDv7, which grows with time; unordered for other ids.
	Order uint64
}

// unordered is the order of an id that isn't a UUIDv7: none of those begins like this.
const unordered = math.MaxUint64

// IDOf makes the ID of a call id.
func IDOf(callID string) ID {
	sum := sha256.Sum256([]byte(callID))
	id := ID{Hash: [16]byte(sum[:16]), Order: unordered}
	if len(callID) != 36 || callID[14] != '7' {
		return id
	}
	parts := strings.Split(callID, "-")
	if len(parts) != 5 || len(parts[0]) != 8 || len(parts[1]) != 4 || len(parts[2]) != 4 || len(parts[3]) != 4 {
		return id
	}
	if b, err := hex.DecodeString(strings.Join(parts, "")); err == nil {
		id.Order = be64(b)
	}
	return id
}

// Floor covers the ids that something has forgotten: those that are as old as the newest
// of them, or older. The zero value covers none.
type Floor struct {
	order uint64
	other bool // ids without an order
}

// Raise makes the floor cover id.
func (f *Floor) Raise(id ID) {
	if id.Order == unordered {
		f.other = true
		return
	}
	f.order = max(f.order, id.Order)
}

// Covers tells whether id may be one of the forgotten.
func (f *Floor) Covers(id ID) bool {
	if id.Order == unordered {
		return f.other
	}
	return id.Order <= f.order
}

func (f *Floor) join(g Floor) {
	f.order = max(f.order, g.order)
	f.other = f.other || g.other
}
