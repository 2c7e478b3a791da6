package run

import (
	"time"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/protocol"
)

// Bounds of the responses that are kept for a server that may not have got them.
const (
	keptBytes = 32 << 20
	keptTime  = time.Hour
	// keptEach is what a response takes in memory beside its texts, in bytes.
	keptEach = 512
)

// kept holds the latest responses, bounded in bytes and time.
type kept struct {
	byID  map[[16]byte]*protocol.Response
	queue []keptOne // oldest first
	bytes int
}

type keptOne struct {
	hash  [16]byte
	until time.Time
	bytes int
}

func (k *kept) put(id journal.ID, r *protocol.Response) {
	size := keptEach + len(r.Result)
	if r.Error != nil {
		size += len(r.Error.Message)
	}
	if k.byID == nil {
		k.byID = map[[16]byte]*protocol.Response{}
	}
	k.byID[id.Hash] = r
	k.queue = append(k.queue, keptOne{hash: id.Hash, until: time.Now().Add(keptTime), bytes: size})
	k.bytes += size
	k.prune()
}

// get finds a response; nil when it isn't kept, or not any more.
func (k *kept) get(id journal.ID) *protocol.Response {
	k.prune()
	return k.byID[id.Hash]
}

// prune drops the oldest until the bounds hold, and tells when the next one is due; zero
// when none is kept.
func (k *kept) prune() (next time.Time) {
	now := time.Now()
	n := 0
	for n < len(k.queue) && (k.bytes > keptBytes || !now.Before(k.queue[n].until)) {
		k.bytes -= k.queue[n].bytes
		delete(k.byID, k.queue[n].hash)
		n++
	}
	if k.queue = k.queue[n:]; len(k.queue) == 0 {
		*k = kept{}
		return time.Time{}
	}
	return k.queue[0].until
}
