package run

import (
	"slices"
	"time"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/share"
	"github.com/drover-fleet/drover/protocol"
)

// Bounds of the responses that are kept for a server that may not have got them.
const (
	keptBytes = 32 << 20
	keptTime  = time.Hour
	// keptEach is what a response takes in memory beside its texts, in bytes.
	keptEach = 512
)

// kept holds the latest responses, bounded in bytes and time. What is too much is the oldest
// of the principal that has the most.
type kept struct {
	byID  map[[16]byte]*protocol.Response
	queue []keptOne // oldest first
	bytes int
	held  map[string]int // of bytes, by principal
}

type keptOne struct {
	hash  [16]byte
	who   string
	until time.Time
	bytes int
}

func (k *kept) put(id journal.ID, who string, r *protocol.Response) {
	size := keptEach + len(r.Result)
	if r.Error != nil {
		size += len(r.Error.Message)
	}
	if k.byID == nil {
		k.byID, k.held = map[[16]byte]*protocol.Response{}, map[string]int{}
	}
	k.byID[id.Hash] = r
	k.queue = append(k.queue, keptOne{hash: id.Hash, who: who, until: time.Now().Add(keptTime), bytes: size})
	k.bytes += size
	k.held[who] += size
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
	for len(k.queue) > 0 && !now.Before(k.queue[0].until) {
		k.drop(0)
	}
	for k.bytes > keptBytes {
		who, _ := share.Largest(k.held, func(string) bool { return true })
		k.drop(slices.IndexFunc(k.queue, func(one keptOne) bool { return one.who == who }))
	}
	if len(k.queue) == 0 {
		*k = kept{}
		return time.Time{}
	}
	return k.queue[0].until
}

// drop forgets the ith of the queue.
func (k *kept) drop(i int) {
	one := k.queue[i]
	k.bytes -= one.bytes
	if k.held[one.who] -= one.bytes; k.held[one.who] <= 0 {
		delete(k.held, one.who)
	}
	delete(k.byID, one.hash)
	if i == 0 {
		k.queue = k.queue[1:]
	} else {
		k.queue = slices.Delete(k.queue, i, i+1)
	}
}
