package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// What can go wrong on the way to a server and back. After errCut the server may have taken the
// request; before errDial nothing was sent.
var (
	errCut  = errors.New("the connection to the server was lost")
	errDial = errors.New("no server answers")
)

// answer is what an error answer's headers tell of it: the private cause of its error.
type answer struct {
	status  int
	foreign bool          // it isn't a Drover server's: something on the way made it
	after   time.Duration // when it wants to be asked again; 0 where it doesn't say
}

// Error implements error.
func (a *answer) Error() string { return "HTTP " + strconv.Itoa(a.status) }

// problem reads an error answer.
func problem(resp *http.Response, b []byte) error {
	how := &answer{status: resp.StatusCode}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 && s < 86400 {
		how.after = time.Duration(s) * time.Second
	}
	var p restapi.Problem
	err := json.Unmarshal(b, &p)
	known := slices.Contains(protocol.Codes(), protocol.Code(p.Error.Code))
	if err != nil || p.Error.Code == "" || !known && resp.StatusCode >= http.StatusInternalServerError {
		how.foreign = true
		return fleet.Wrap(protocol.CodeUnavailable, how, "HTTP %d, not from a Drover server; is the URL right, and what is between?", resp.StatusCode)
	}
	return &fleet.Error{Code: protocol.Code(p.Error.Code), Reason: p.Error.Reason, Message: p.Error.Message, Err: how}
}

// reached tells whether a server may have done what was asked, though the answer is an error:
// it was lost on the way, or is another's (a proxy's 502 comes before or after its server has
// the request).
func reached(err error) bool {
	how, ok := errors.AsType[*answer](err)
	return errors.Is(err, errCut) || ok && how.foreign && how.status >= http.StatusInternalServerError
}

// passing tells whether an error is one of the way or the server, which may be gone when the
// same is asked again.
func passing(err error) bool {
	if errors.Is(err, errDial) || reached(err) {
		return true
	}
	fe, ok := errors.AsType[*fleet.Error](err)
	if how, answered := errors.AsType[*answer](err); !ok || answered && how.foreign {
		return false
	}
	return fe.Code == protocol.CodeUnavailable || fe.Code == protocol.CodeRateLimited
}

// Patience with one request of a call.
const (
	retries    = 30               // one after the other
	retryPause = time.Second      // between them
	maxPause   = 20 * time.Second // where the answer asks for a longer one
)

// pauseAfter is how long to wait after err: what the answer asks for, within bounds.
func pauseAfter(err error, least time.Duration) time.Duration {
	if how, ok := errors.AsType[*answer](err); ok {
		return max(least, min(how.after, maxPause))
	}
	return least
}

// persist repeats a request while what keeps it from an answer is passing, as long as ctx
// lasts. It does so once the call is begun, or one try may have reached a server: what was begun
// has an end, and it isn't "nothing happened". begun tells whether that's so.
func persist(ctx context.Context, already bool, request func() error) (begun bool, err error) {
	begun = already
	for n := 0; ; n++ {
		err = request()
		begun = begun || reached(err)
		if err == nil || !begun || !passing(err) || n == retries || pause(ctx, pauseAfter(err, retryPause)) != nil {
			return begun, err
		}
	}
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
