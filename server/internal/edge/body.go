package edge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// How long a body may take to arrive, from the moment it's asked for.
const (
	// smallBody is what one packet or a few carry: a longer wait only holds a connection.
	smallBody     = 256 << 10
	smallPatience = 15 * time.Second
	// largePatience is for calls with files in them, over a slow line.
	largePatience = 60 * time.Second
)

// Reasons of a body that Read could not have whole, beside bad_args.
const (
	ReasonBodyLate = "body_late" // 408
	ReasonBodyCut  = "body_cut"  // 400
)

// Read reads the whole body of r, of at most limit bytes. A body of at most 256 KiB may
// take 15 seconds to arrive, a larger limit gives it 60; afterwards the connection has no
// read deadline any more, as that would end the request's context while its answer is
// waited for. Errors are *fleet.Error: too_large, or bad_args where the body didn't arrive
// whole (ReasonBodyLate, ReasonBodyCut); after one the deadline stays, so that nothing waits
// for the rest either.
func Read(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	patience := smallPatience
	if limit > smallBody {
		patience = largePatience
	}
	setReadDeadline(w, time.Now().Add(patience))
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		// A promise isn't taken at its word: memory comes with the bytes.
		buf.Grow(int(min(r.ContentLength, smallBody)) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, int64(limit)))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		setReadDeadline(w, time.Time{})
		return buf.Bytes(), nil
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	}
	w.Header().Set("Connection", "close") // where a next request would begin isn't known
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &fleet.Error{Code: protocol.CodeBadArgs, Reason: ReasonBodyLate, Err: err,
			Message: fmt.Sprintf("the body did not arrive within %d seconds; send the request again", int(patience.Seconds()))}
	}
	return nil, &fleet.Error{Code: protocol.CodeBadArgs, Reason: ReasonBodyCut, Err: err,
		Message: "the body did not arrive whole: the connection broke, or its length is another than was said"}
}

// setReadDeadline bounds the reads of the request's connection; the zero time ends that. A
// writer without a connection (in a test) has nothing to bound.
func setReadDeadline(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t)
}

// UnreadBody bounds how long the body of a request is waited for that is answered without
// being read: net/http drains what remains before it takes the connection's next request,
// and would do so for ever. It belongs before everything else; Read has deadlines of its own.
func UnreadBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			setReadDeadline(w, time.Now().Add(smallPatience))
		}
		next.ServeHTTP(w, r)
	})
}

func tooLarge(limit int) *fleet.Error {
	return fleet.Errorf(protocol.CodeTooLarge, "the body is larger than %d bytes; send less in one request", limit)
}

// Check reports whether body is one strict JSON document: no name twice at any depth, no
// trailing data, bounded depth, no number that JSON readers would change. The error is a
// *fleet.Error with bad_args that repeats no value.
func Check(body []byte) error {
	if err := strict.Check(body, strict.Limits{MaxDepth: strict.DefaultDepth, Numbers: true}); err != nil {
		return BadBody(err)
	}
	return nil
}

// BadBody makes an error of package strict a *fleet.Error with bad_args.
func BadBody(err error) *fleet.Error {
	var se *strict.Error
	if errors.As(err, &se) {
		if se.Kind == strict.Size {
			return fleet.Errorf(protocol.CodeTooLarge, "the body is too large")
		}
		return fleet.Errorf(protocol.CodeBadArgs, "the body was refused: %s", se.Error())
	}
	return fleet.Wrap(protocol.CodeBadArgs, err, "the body is not valid JSON")
}

// ReadBody reads each request's body once, whole and strictly, before anything more lenient
// sees it, and gives the checked bytes on as the body. refuse answers a body that was
// refused, and records it where that's wanted; nil means WriteError.
func ReadBody(limit int, refuse func(http.ResponseWriter, *http.Request, *fleet.Error)) func(http.Handler) http.Handler {
	if refuse == nil {
		refuse = func(w http.ResponseWriter, _ *http.Request, e *fleet.Error) { WriteError(w, e) }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := Read(w, r, limit)
			if err == nil && len(body) > 0 {
				err = Check(body)
			}
			if err != nil {
				refuse(w, r, fleet.AsError(err))
				return
			}
			SetBody(r, body)
			next.ServeHTTP(w, r)
		})
	}
}

// SetBody makes body what the next reader of r finds.
func SetBody(r *http.Request, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
}
