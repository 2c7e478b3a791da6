package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/drover-fleet/drover/protocol/strict"
)

// Replicas of this version and the one before run side by side, while a deployment is upgraded.
// What holds between them is in ADR 22; testdata has what each version said.

// errUnreadable: whoever said it is a replica of this deployment, and of another version.
var errUnreadable = errors.New("cluster: a message that this version doesn't understand")

// newsUnread stands for news of which only whose it is could be read.
const newsUnread = ""

// maxNews bounds one message of news, in bytes.
const maxNews = 1 << 20

// readNews reads another replica's news. Members and kinds that a newer version has added are
// passed over. Of what can't be read otherwise the number counts, so that everything is asked
// for once: then both the news and errUnreadable are returned. Without news it's nobody's.
func readNews(plain []byte) (*news, error) {
	lim := strict.Limits{MaxBytes: maxNews, MaxDepth: 8, Extra: true}
	var n news
	err := strict.Unmarshal(plain, &n, lim)
	if err == nil && n.Kind != newsUnread {
		return &n, nil
	}
	err = fmt.Errorf("%w: %w", errUnreadable, err)
	var h struct {
		From string `json:"from"`
		Seq  int64  `json:"seq"`
		AtUS int64  `json:"at_us"`
	}
	lim.MaxDepth = strict.DefaultDepth
	if strict.Unmarshal(plain, &h, lim) != nil {
		return nil, err
	}
	unread := &news{Kind: newsUnread, From: h.From, Seq: h.Seq, AtUS: h.AtUS}
	var k struct {
		Kind string `json:"kind"`
	}
	if strict.Unmarshal(plain, &k, lim) == nil && k.Kind == newsEnded {
		unread.Kind = newsEnded // a revocation, of what isn't known
	}
	return unread, err
}

// askAgainAfter is the least time from one asking for everything to the next. Where what a
// replica tells then isn't understood either, it doubles for that replica, up to 32 s.
const (
	askAgainAfter = beatEvery / 2
	maxDoublings  = 5
)

// mayAsk tells whether the others may be asked for everything on behalf of o; last is when they
// were, on behalf of any.
func (o *other) mayAsk(last time.Time) bool {
	return time.Since(last) > askAgainAfter && time.Since(o.asked) > askAgainAfter<<min(o.asks, maxDoublings)
}
