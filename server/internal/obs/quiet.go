package obs

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Quiet bounds the lines that hosts can cause in the log, by connecting again and again or by what
// they answer: of each kind, for each agent that has proved its key, and for all others together,
// a few are written a minute, and then how many more there were. Counters count them all. The zero
// value is ready.
type Quiet struct {
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
	quietLines = 5 // a minute
	quietFor   = time.Minute
)

// Allow tells whether a line may be written. agent is "" for those that proved nothing.
func (q *Quiet) Allow(kind, agent string, now time.Time) bool {
	return q.AllowMost(kind, agent, quietLines, now)
}

// AllowMost is Allow with another number of lines a minute.
func (q *Quiet) AllowMost(kind, agent string, most int, now time.Time) bool {
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

// Tell writes how many lines were left out of the minutes that are over.
func (q *Quiet) Tell(log *slog.Logger, now time.Time) {
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
