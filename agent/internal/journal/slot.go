package journal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

// The file is a header and slots, each slotSize long, so that none lies across two of the
// disk's sectors. All numbers are big endian.
const (
	slotSize = 128
	magic    = "drover-journal-1"
	maxTool  = 48
)

// What flags say.
const (
	flagExit  = 1 << iota // there's an exit code
	flagOther             // the floor covers ids without an order
	allFlags  = flagExit | flagOther
)

// slot is one entry as it's stored.
type slot struct {
	state State
	exit  *uint32 // as the system gives it: Windows has codes beyond 2^31
	left  uint16  // processes that were ended after a restart of the agent
	seq   uint64  // 1, 2, 3 …; its place follows from it; 0: empty
	id    ID
	floor Floor // of the journal when it was written
	began int64 // microseconds UTC
	ended int64
	pid   uint32
	boot  uint64 // of the host when it began; 0 unknown
	tool  string
}

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// sum is a slot's checksum. Journal and place are in it, so that bytes of another journal,
// or in a wrong place, aren't taken for an entry.
func sum(b []byte, journal [16]byte, place int) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	where := make([]byte, 0, 20)
	where = binary.BigEndian.AppendUint32(append(where, journal[:]...), uint32(place))
	return crc32.Update(crc32.Update(0, table, where), table, b)
}

func (s *slot) encode(journal [16]byte, place int) (b [slotSize]byte) {
	b[4] = byte(s.state)
	if s.exit != nil {
		b[5] |= flagExit
		binary.BigEndian.PutUint32(b[68:], *s.exit)
	}
	if s.floor.other {
		b[5] |= flagOther
	}
	binary.BigEndian.PutUint16(b[6:], s.left)
	binary.BigEndian.PutUint64(b[8:], s.seq)
	copy(b[16:32], s.id.Hash[:])
	binary.BigEndian.PutUint64(b[32:], s.id.Order)
	binary.BigEndian.PutUint64(b[40:], s.floor.order)
	binary.BigEndian.PutUint64(b[48:], uint64(s.began))
	binary.BigEndian.PutUint64(b[56:], uint64(s.ended))
	binary.BigEndian.PutUint32(b[64:], s.pid)
	binary.BigEndian.PutUint64(b[72:], s.boot)
	copy(b[80:slotSize], s.tool)
	binary.BigEndian.PutUint32(b[:], sum(b[4:], journal, place))
	return b
}

// decode reads a slot; false when it holds something else than an entry of this journal in
// this place, or nothing at all (then s is the zero value, with true).
func decode(b []byte, journal [16]byte, place, slots int) (s slot, ok bool) {
	if len(b) != slotSize {
		return slot{}, false
	}
	if !bytes.ContainsFunc(b, func(r rune) bool { return r != 0 }) {
		return slot{}, true
	}
	if binary.BigEndian.Uint32(b) != sum(b[4:], journal, place) {
		return slot{}, false
	}
	s = slot{state: State(b[4]), left: binary.BigEndian.Uint16(b[6:]), seq: be64(b[8:]), id: ID{Hash: [16]byte(b[16:32]), Order: be64(b[32:])},
		floor: Floor{order: be64(b[40:]), other: b[5]&flagOther != 0}, began: int64(be64(b[48:])), ended: int64(be64(b[56:])),
		pid: binary.BigEndian.Uint32(b[64:]), boot: be64(b[72:]), tool: strings.TrimRight(string(b[80:]), "\x00")}
	if b[5]&flagExit != 0 {
		code := binary.BigEndian.Uint32(b[68:])
		s.exit = &code
	}
	if s.state < Started || s.state > Withdrawn || b[5]&^byte(allFlags) != 0 || s.seq == 0 || s.place(slots) != place {
		return slot{}, false
	}
	return s, true
}

// place is where an entry of this number is stored.
func (s *slot) place(slots int) int { return int((s.seq - 1) % uint64(slots)) }

func encodeHeader(journal [16]byte, slots int) (b [slotSize]byte) {
	copy(b[4:], magic)
	binary.BigEndian.PutUint32(b[20:], slotSize)
	binary.BigEndian.PutUint32(b[24:], uint32(slots))
	copy(b[28:], journal[:])
	binary.BigEndian.PutUint32(b[:], sum(b[4:], journal, -1))
	return b
}

// decodeHeader reads the journal's id; false when this isn't the header of a journal with
// so many slots.
func decodeHeader(b []byte, slots int) (journal [16]byte, ok bool) {
	if len(b) < slotSize {
		return journal, false
	}
	journal = [16]byte(b[28:44])
	want := encodeHeader(journal, slots)
	return journal, bytes.Equal(b[:slotSize], want[:])
}
