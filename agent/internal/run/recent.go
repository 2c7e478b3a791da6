package run

import "github.com/drover-fleet/drover/agent/internal/journal"

// remembered is how many call ids a generation of a memory holds; there are two, so that
// the latest 50,000 are always known.
const remembered = 50_000

// recent knows the latest of the ids that it was given, in bounded space.
type recent struct {
	now, old map[[16]byte]struct{}
	newest   [2]journal.Floor // of now and of old
	gone     journal.Floor    // of what was forgotten
}

// add remembers an id.
func (m *recent) add(id journal.ID) {
	if m.has(id) {
		return
	}
	if len(m.now) >= remembered {
		if len(m.old) > 0 {
			m.gone = m.newest[1]
		}
		m.old, m.now = m.now, nil
		m.newest[1] = m.newest[0]
	}
	if m.now == nil {
		m.now = map[[16]byte]struct{}{}
	}
	m.now[id.Hash] = struct{}{}
	m.newest[0].Raise(id)
}

func (m *recent) has(id journal.ID) bool {
	_, now := m.now[id.Hash]
	_, old := m.old[id.Hash]
	return now || old
}
