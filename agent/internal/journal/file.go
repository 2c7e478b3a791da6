package journal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drover-fleet/drover/agent/internal/durable"
)

// Names in the state folder.
const (
	fileName = "calls.journal"
	badName  = "calls.journal.damaged" // the latest one that was set aside
)

// Open opens the journal of a state folder, or makes it. A file that is damaged, cut short
// or of another kind is set aside as calls.journal.damaged, and a journal with a new name
// takes its place; it keeps the entries that could still be read.
func Open(o Options) (*Journal, error) {
	if o.Slots == 0 {
		o.Slots = Slots
	}
	j := newJournal(o.Slots, bootOf(o.HostBoot))
	path := filepath.Join(o.Dir, fileName)
	whole, err := j.load(path)
	switch {
	case err == nil && whole:
	case err == nil:
		j.aside = filepath.Join(o.Dir, badName)
		if err := os.Rename(path, j.aside); err != nil {
			return nil, fmt.Errorf("journal: set the damaged one aside: %w", err)
		}
		j.renew()
		fallthrough
	case errors.Is(err, fs.ErrNotExist):
		if err := j.create(path); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("journal: %w", err)
	}
	if j.f, err = os.OpenFile(path, os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	smallPages(j.f, int64(len(j.ring)+1)*slotSize)
	j.attest(o)
	return j, nil
}

// load reads a file into memory; whole is false when it isn't wholly a journal.
func (j *Journal) load(path string) (whole bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	size := int64(len(j.ring)+1) * slotSize
	if !info.Mode().IsRegular() || info.Size() != size {
		return false, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), b); err != nil {
		return false, nil // a bad sector: what can't be read is damaged
	}
	id, ok := decodeHeader(b, len(j.ring))
	if !ok {
		return false, nil
	}
	j.id = id
	// The sync tells whether something that the last process wrote didn't reach the disk: it
	// may then be older than that process was.
	return j.take(b[slotSize:]) && f.Sync() == nil, nil
}

// take fills the ring; false when a slot is damaged.
func (j *Journal) take(b []byte) bool {
	whole := true
	for i := range j.ring {
		s, ok := decode(b[i*slotSize:(i+1)*slotSize], j.id, i, len(j.ring))
		if _, twice := j.index[s.id.Hash]; !ok || twice && s.seq != 0 {
			whole = false
			continue
		}
		if s.seq == 0 {
			continue
		}
		j.ring[i], j.index[s.id.Hash] = s, int32(i)
		j.next, j.sum = max(j.next, s.seq+1), j.sum+s.seq
		j.floor.join(s.floor)
	}
	return whole
}

// renew makes a new journal of what was left of a damaged one. Whatever is as old as the
// newest entry may have been in a slot that was lost.
func (j *Journal) renew() {
	rand.Read(j.id[:])
	for i := range j.ring {
		if j.ring[i].seq != 0 {
			j.floor.Raise(j.ring[i].id)
		}
	}
	for i := range j.ring {
		j.ring[i].floor = j.floor
	}
}

// create puts the whole file in its place. Its space is taken now: later writes go to
// blocks that it has.
func (j *Journal) create(path string) error {
	h := encodeHeader(j.id, len(j.ring))
	image := h[:]
	for i := range j.ring {
		var b [slotSize]byte
		if j.ring[i].seq != 0 {
			b = j.ring[i].encode(j.id, i)
		}
		image = append(image, b[:]...)
	}
	if err := durable.WriteFile(path, image); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := errors.Join(allocate(f, int64(len(image))), f.Close()); err != nil {
		return fmt.Errorf("journal: take its space: %w", err)
	}
	return nil
}
