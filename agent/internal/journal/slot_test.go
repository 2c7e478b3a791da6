package journal

import (
	"bytes"
	"testing"
)

// Whatever is in a slot: it's an entry of this journal in this place, written back as it
// was, or it isn't taken.
func FuzzSlot(f *testing.F) {
	code := uint32(0xc0000005)
	id := [16]byte{1, 2, 3}
	for i, s := range []slot{
		{state: Started, seq: 3, id: ID{Order: unordered}, tool: "shell_exec"},
		{state: Lost, seq: 8*5 + 3, exit: &code, left: 9, floor: Floor{order: 5, other: true}, began: -1, ended: 1 << 50, pid: 1 << 31, boot: 7, tool: "x"},
	} {
		b := s.encode(id, 2)
		f.Add(b[:], i)
	}
	f.Add(make([]byte, slotSize), 2)
	f.Add([]byte("short"), 2)
	f.Fuzz(func(t *testing.T, b []byte, place int) {
		place &= 7
		if len(b) == slotSize { // also try what the checksum would hide
			s, ok := decode(b, id, place, 8)
			if !ok {
				b = bytes.Clone(b)
				sealed(b, id, place)
				s, ok = decode(b, id, place, 8)
			}
			if !ok {
				return
			}
			if s.seq == 0 {
				if s != (slot{}) {
					t.Errorf("an empty slot holds %+v", s)
				}
				return
			}
			if s.place(8) != place || s.state < Started || s.state > Withdrawn {
				t.Errorf("taken: %+v", s)
			}
			back := s.encode(id, place)
			again, ok := decode(back[:], id, place, 8)
			if !ok || again.seq != s.seq || again.id != s.id || again.floor != s.floor || again.tool != s.tool || (again.exit == nil) != (s.exit == nil) {
				t.Errorf("%+v became %+v", s, again)
			}
			return
		}
		if _, ok := decode(b, id, place, 8); ok {
			t.Error("a slot of another length was taken")
		}
	})
}

func sealed(b []byte, id [16]byte, place int) {
	c := sum(b[4:], id, place)
	b[0], b[1], b[2], b[3] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
}
