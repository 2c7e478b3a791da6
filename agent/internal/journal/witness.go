package journal

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
)

// witness remembers outside the state folder, in the memory of the system, how far the
// journal has come. It dies with the system's boot and comes back with no backup or snapshot
// of the folder, so that a journal which is an older one of itself is known by it.
type witness struct {
	f    *os.File // nil: there's none
	last mark
	out  [markSize]byte // what's being written
}

// mark is what a witness holds.
type mark struct {
	// name is a part of Boot and is stored nowhere else: what takes a journal's name to be the
	// same has this witness's word for it.
	name    uint64
	journal [16]byte
	sum     uint64 // of the numbers of the journal's entries: each new one makes it larger
}

const markSize = 32

func (m *mark) encode() (b [markSize]byte) {
	binary.BigEndian.PutUint64(b[:], m.name)
	copy(b[8:], m.journal[:])
	binary.BigEndian.PutUint64(b[24:], m.sum)
	return b
}

// decodeMark reads a mark. It needs no checksum: whatever is changed in it makes another name
// of it, or another journal. No journal's is the zero mark.
func decodeMark(b []byte) mark {
	if len(b) != markSize {
		return mark{}
	}
	return mark{name: be64(b), journal: [16]byte(b[8:24]), sum: be64(b[24:])}
}

// attest has the witness's word for the journal that was read. Where it saw another one, or a
// newer one, or saw none, the journal gets a new name, and nothing is concluded from what
// isn't in it.
func (j *Journal) attest(o Options) {
	var seen mark
	var random [8]byte
	rand.Read(random[:])
	fresh := be64(random[:])
	now := mark{name: fresh, journal: j.id, sum: j.sum}
	j.witness.f, j.unwitnessed = openWitness(o, func(old []byte) [markSize]byte {
		now.name = fresh
		if seen = decodeMark(old); seen.journal == now.journal && seen.sum == now.sum {
			now.name = seen.name
		}
		return now.encode()
	})
	if j.witness.f == nil { // then each process is a journal of its own
		now.name = fresh
	}
	j.witness.last = now
	j.older = seen.journal == j.id && seen.sum > j.sum
	j.name = strconv.FormatUint(now.name, 36)
}

// put writes down how far the journal has come, after it has and before the call starts:
// whenever the process is killed, the witness knows of each call that has.
func (w *witness) put(sum uint64) error {
	if w.f == nil {
		return nil
	}
	w.last.sum = sum
	w.out = w.last.encode()
	if _, err := w.f.WriteAt(w.out[:], 0); err != nil {
		return fmt.Errorf("journal: its witness: %w", err)
	}
	return nil
}

func (w *witness) close() error {
	if w.f == nil {
		return nil
	}
	return w.f.Close()
}
