package edge

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/limit"
)

// What the bodies of open requests may take, in bytes: fifteen of the largest of one
// principal. Those of at most smallBody aren't counted: their connections cost as much.
const (
	ownBodies = 64 << 20
	allBodies = 256 << 20
	// bodyTurn is how long a body waits for room.
	bodyTurn = 10 * time.Second
	// moment is how long a body takes that arrives with its request.
	moment = 100 * time.Millisecond
)

// MaxValues bounds the values of a body of JSON (strict.Values). Decoded, a value takes a hundred
// bytes where it took three: the bytes alone, which are counted, don't say what a body costs.
const MaxValues = 100_000

// Reasons of a body that there's no room for, beside rate_limited.
const (
	ReasonOwnBodies = "principal_body_bytes"
	ReasonAllBodies = "body_bytes"
)

// Bodies reads the bodies of requests and bounds the memory that they take until they're
// answered.
type Bodies struct {
	shares *limit.Shares
	alive  func(principal string) bool
}

// NewBodies makes Bodies. alive says whether a principal's credential still counts.
func NewBodies(alive func(principal string) bool) *Bodies {
	return &Bodies{shares: limit.New(ownBodies, allBodies), alive: alive}
}

// Held is how many bytes the bodies of open requests may take now.
func (b *Bodies) Held() int64 { return b.shares.Held() }

// Read reads the whole body of a request of who: JSON, of at most limit bytes and MaxValues
// values. done must be called
// when the request is answered, and nobody uses the body any more. The body's first 8 KiB may
// take 15 seconds to arrive, and each 64 KiB after them 30; afterwards the connection has no
// read deadline any more, as that would end the request's context while its answer is waited
// for. Errors are *fleet.Error: too_large; bad_args where the body didn't arrive whole (ReasonBodyLate,
// ReasonBodyCut); rate_limited where there's no room for it (ReasonOwnBodies,
// ReasonAllBodies); unauthenticated where the credential ended meanwhile. After one the
// deadline stays, so that nothing waits for the rest either.
func (b *Bodies) Read(w http.ResponseWriter, r *http.Request, who string, limit int) (body []byte, done func(), err error) {
	began, held := time.Now(), int64(0)
	done = func() {
		if held > 0 {
			b.shares.Give(who, held)
			held = 0
		}
	}
	body, err = read(w, r, limit, func(most int) error {
		if err := b.reserve(r.Context(), who, int64(most)); err != nil {
			return err
		}
		held = int64(most)
		return nil
	})
	if err == nil && (held > 0 || time.Since(began) > moment) && !b.alive(who) {
		err = fleet.Errorf(protocol.CodeUnauthenticated, "the credential was revoked or has expired while the body arrived; nothing was started")
	}
	if err == nil && len(body) > 2*MaxValues && strict.Values(body) > MaxValues { // each but the first takes two bytes
		err = fleet.Errorf(protocol.CodeTooLarge, "the body has more than %d JSON values; send less in one request, and large content as one text or as a file", MaxValues)
	}
	if err != nil {
		done()
		return nil, func() {}, err
	}
	if rest := held - int64(len(body)); held > 0 && rest > 0 { // its size wasn't said
		b.shares.Give(who, rest)
		held -= rest
	}
	return body, done, nil
}

// reserve waits for room for a body.
func (b *Bodies) reserve(ctx context.Context, who string, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, bodyTurn)
	defer cancel()
	err := b.shares.Wait(ctx, who, n)
	switch {
	case errors.Is(err, limit.ErrOwn):
		return fleet.Limited(ReasonOwnBodies, "the bodies of this credential's open requests together are as large as may be (%d MiB), and none was answered within %d seconds; nothing was started; send again when some are, or send large files with drover cp",
			ownBodies>>20, int(bodyTurn.Seconds()))
	case err != nil:
		return fleet.Limited(ReasonAllBodies, "the bodies of all open requests together are as large as may be (%d MiB), and too few were answered within %d seconds; nothing was started; send again in a moment",
			allBodies>>20, int(bodyTurn.Seconds()))
	}
	return nil
}
