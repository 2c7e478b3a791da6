package edge

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Read reads the whole body of r, of at most limit bytes. Its errors are *fleet.Error:
// too_large, or bad_args where the body didn't arrive whole.
func Read(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, int64(limit)))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case err != nil:
		return nil, fleet.Wrap(protocol.CodeBadArgs, err, "the body did not arrive whole")
	}
	return buf.Bytes(), nil
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
