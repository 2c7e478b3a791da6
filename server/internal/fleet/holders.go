package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// holders are the processes that held an identity, one after the other, until another took
// over. Written down they are words of name:epoch:from:until, at most 4 KiB in all.
type holders []holder

type holder struct {
	name        string // of the instance: see holderName
	epoch       int64  // what the agent had acknowledged when it ended
	from, until int64  // in seconds since 1970; from is 0 for the first
}

// What's remembered of earlier holders. They are more than a copy that's started again and
// again leaves in one absence of the first; and where they aren't, the shortest go, which are
// that copy's.
const (
	maxHolders = 64
	holdersFor = 30 * 24 * 60 * 60 // seconds
)

// holderName is what stands for an instance, whose own name may be long.
func holderName(instance string) string {
	sum := sha256.Sum256([]byte(instance))
	return hex.EncodeToString(sum[:8])
}

// HolderBefore is Standing.Earlier of one earlier instance.
func HolderBefore(instance string, epoch, until int64) string {
	return holders{}.add(instance, epoch, until).String()
}

// parseHolders leaves out what isn't a holder.
func parseHolders(s string) holders {
	var hs holders
	for _, word := range strings.Fields(s) {
		var h holder
		if _, err := fmt.Sscanf(strings.ReplaceAll(word, ":", " "), "%s %d %d %d", &h.name, &h.epoch, &h.from, &h.until); err == nil {
			hs = append(hs, h)
		}
	}
	return hs
}

func (hs holders) String() string {
	words := make([]string, len(hs))
	for i, h := range hs {
		words[i] = fmt.Sprintf("%s:%d:%d:%d", h.name, h.epoch, h.from, h.until)
	}
	return strings.Join(words, " ")
}

// find is the place of the earliest that this instance is, with no older state than it had
// then; -1 for none.
func (hs holders) find(instance string, lastEpoch int64) int {
	name := holderName(instance)
	return slices.IndexFunc(hs, func(h holder) bool { return h.name == name && lastEpoch >= h.epoch })
}

// add notes that another process takes over from this instance now.
func (hs holders) add(instance string, epoch, now int64) holders {
	h := holder{name: holderName(instance), epoch: epoch, until: now}
	if len(hs) > 0 {
		h.from = hs[len(hs)-1].until
	}
	out := slices.DeleteFunc(slices.Clone(hs), func(h holder) bool { return now-h.until > holdersFor })
	out = append(out, h)
	for len(out) > maxHolders {
		short := 0
		for i, h := range out[:len(out)-1] { // the last one's end is when the next began
			if h.until-h.from < out[short].until-out[short].from {
				short = i
			}
		}
		out = slices.Delete(out, short, short+1)
	}
	return out
}
