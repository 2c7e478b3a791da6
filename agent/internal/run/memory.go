package run

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

// remembered is how many call ids a generation of the memory holds; there are two, so that
// the latest 50,000 are always known.
const remembered = 50_000

type key [16]byte

func keyOf(id string) key {
	sum := sha256.Sum256([]byte(id))
	return key(sum[:16])
}

// memory knows the ids of the calls that this process has seen, in bounded space, and
// which of them are running.
type memory struct {
	mu       sync.Mutex
	now, old map[key]struct{}
	running  map[key]struct{}
	turns    int // how often the older generation was forgotten
}

func newMemory() *memory {
	return &memory{now: map[key]struct{}{}, old: map[key]struct{}{}, running: map[key]struct{}{}}
}

// add remembers an id; false when it was known.
func (m *memory) add(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.insert(keyOf(id))
}

func (m *memory) insert(k key) bool {
	if m.known(k) {
		return false
	}
	if len(m.now) >= remembered {
		if len(m.old) > 0 {
			m.turns++
		}
		m.old, m.now = m.now, map[key]struct{}{}
	}
	m.now[k] = struct{}{}
	return true
}

func (m *memory) known(k key) bool {
	_, a := m.now[k]
	_, b := m.old[k]
	_, c := m.running[k]
	return a || b || c
}

func (m *memory) start(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[keyOf(id)] = struct{}{}
}

func (m *memory) end(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, keyOf(id))
}

// fate tells what became of a call: running, done or unseen. An id that was unseen is
// remembered from then on: the server takes it for not started, so it may never start,
// however late the request comes.
func (m *memory) fate(id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := keyOf(id)
	if _, ok := m.running[k]; ok {
		return "running"
	}
	if m.insert(k) {
		return "unseen"
	}
	return "done"
}

// name is the boot id that goes with the memory: unseen under the same boot means never started.
// Once ids were forgotten that can't be concluded any more, so the name changes.
func (m *memory) name(boot string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turns == 0 {
		return boot
	}
	return fmt.Sprintf("%s.%d", boot, m.turns)
}
