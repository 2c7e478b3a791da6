package tunnel

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// quiet bounds the lines that peers can cause in the log by connecting again and again: of
// each kind, for each agent that has proved its key, and for all others together, a few are
// written a minute, and then how many more there were. Counters count them all.
type quiet struct {
	mu    sync.Mutex
	kinds map[quietKind]*quietCount
}

type quietKind struct{ kind, agent string }

type quietCount struct {
	since time.Time
	n     int
	most  int
}

const (
	quietLines = 5  // a minute
	agentLines = 60 // that an agent sends for the log itself
	quietFor   = time.Minute
)

// allow tells whether a line may be written. agent is "" for those that proved nothing.
func (q *quiet) allow(kind, agent string, now time.Time) bool {
	return q.allowMost(kind, agent, quietLines, now)
}

// allowMost is allow with another number of lines a minute.
func (q *quiet) allowMost(kind, agent string, most int, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.kinds == nil {
		q.kinds = map[quietKind]*quietCount{}
	}
	c := q.kinds[quietKind{kind, agent}]
	if c == nil {
		c = &quietCount{since: now, most: most}
		q.kinds[quietKind{kind, agent}] = c
	}
	c.n++
	return c.n <= most
}

// tell writes how many lines were left out of the minutes that are over.
func (q *quiet) tell(log *slog.Logger, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for k, c := range q.kinds {
		if now.Sub(c.since) < quietFor {
			continue
		}
		delete(q.kinds, k)
		if more := c.n - c.most; more > 0 {
			log.Warn(fmt.Sprintf("%s: %d more in %s", k.kind, more, now.Sub(c.since).Round(time.Second)), "agent", k.agent)
		}
	}
}
