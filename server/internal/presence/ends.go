package presence

import (
	"sync"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// EndsFor is how long the end of a connection counts as recent: news of the next one, from
// another replica too, comes well within it.
const EndsFor = time.Second

// Ends remembers for EndsFor whose connections ended. The zero value is empty.
type Ends struct {
	mu    sync.Mutex
	at    map[fleet.AgentID]time.Time
	swept time.Time
}

// Note remembers that a connection of the agent ended now.
func (e *Ends) Note(id fleet.AgentID, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.swept) >= EndsFor { // not each time: all agents may go at once
		e.swept = now
		for other, at := range e.at {
			if now.Sub(at) >= EndsFor {
				delete(e.at, other)
			}
		}
	}
	if e.at == nil {
		e.at = map[fleet.AgentID]time.Time{}
	}
	e.at[id] = now
}

// Recent tells whether a connection of the agent ended less than EndsFor before now.
func (e *Ends) Recent(id fleet.AgentID, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.at[id]
	return ok && now.Sub(at) < EndsFor
}
