package identity

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"sync"
)

// epochStore keeps one number in a small file that is overwritten in place, so that a full
// disk doesn't lock the operators out. There are two slots, written by turns: a crash
// within a write leaves the other one.
type epochStore struct {
	mu   sync.Mutex
	f    *os.File
	last int64
	slot int64 // where the next one goes
}

// slotSize is number, checksum, padding.
const slotSize = 16

func (e *epochStore) open(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	var b [2 * slotSize]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		f.Close()
		return err
	}
	e.f = f
	for i := range int64(2) {
		s := b[i*slotSize : (i+1)*slotSize]
		epoch := int64(binary.BigEndian.Uint64(s))
		if binary.BigEndian.Uint32(s[8:]) == crc32.ChecksumIEEE(s[:8]) && epoch > e.last {
			e.last, e.slot = epoch, 1-i
		}
	}
	if n < len(b) { // new: take the space now
		if _, err := f.WriteAt(b[n:], int64(n)); err != nil {
			f.Close()
			return err
		}
		return f.Sync()
	}
	return nil
}

func (e *epochStore) get() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

func (e *epochStore) set(epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch <= e.last {
		return nil
	}
	var b [slotSize]byte
	binary.BigEndian.PutUint64(b[:], uint64(epoch))
	binary.BigEndian.PutUint32(b[8:], crc32.ChecksumIEEE(b[:8]))
	if _, err := e.f.WriteAt(b[:], e.slot*slotSize); err != nil {
		return err
	}
	if err := e.f.Sync(); err != nil {
		return err
	}
	e.last, e.slot = epoch, 1-e.slot
	return nil
}

func (e *epochStore) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.f.Close()
}
