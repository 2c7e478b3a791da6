package edge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// How a body may arrive. Nobody is hurried who sends at all: a call with a file in it may come
// over a slow line.
const (
	// smallBody is what any request may have in memory: one packet or a few carry it.
	smallBody     = 8 << 10
	smallPatience = 15 * time.Second
	// bodyPiece is what arrives within each piecePatience after that.
	bodyPiece     = 64 << 10
	piecePatience = 30 * time.Second
)

// Reasons of a body that Read could not have whole, beside bad_args.
const (
	ReasonBodyLate = "body_late" // 408
	ReasonBodyCut  = "body_cut"  // 400
)

// Read reads the whole body of r, of at most limit bytes, for a request that nobody has
// authenticated: it's for small bodies alone. Bodies.Read is for all others; what it says of
// errors and of time is true here.
func Read(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	return read(w, r, limit, func(int) error { return nil })
}

// read reads a body. Before it takes more memory than smallBody it asks for it: reserve gets
// the size that the body may come to.
func read(w http.ResponseWriter, r *http.Request, limit int, reserve func(most int) error) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	setReadDeadline(w, time.Now().Add(smallPatience))
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	most := limit
	if r.ContentLength >= 0 {
		most = int(r.ContentLength)
	}
	b := arriving{w: w, from: http.MaxBytesReader(w, r.Body, int64(limit)), most: most}
	err := b.until(min(most, smallBody))
	if err == nil && !b.whole {
		err = reserve(most)
	}
	for err == nil && !b.whole {
		setReadDeadline(w, time.Now().Add(piecePatience))
		err = b.until(len(b.got) + bodyPiece)
	}
	var over *http.MaxBytesError
	switch {
	case err == nil:
		setReadDeadline(w, time.Time{})
		return b.got, nil
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	}
	w.Header().Set("Connection", "close") // where a next request would begin isn't known
	if fe, ok := errors.AsType[*fleet.Error](err); ok {
		return nil, fe
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &fleet.Error{Code: protocol.CodeBadArgs, Reason: ReasonBodyLate, Err: err,
			Message: fmt.Sprintf("the body stopped arriving: it may begin within %d seconds, and each further %d KiB of it may take %d; send the request again",
				int(smallPatience.Seconds()), bodyPiece>>10, int(piecePatience.Seconds()))}
	}
	return nil, &fleet.Error{Code: protocol.CodeBadArgs, Reason: ReasonBodyCut, Err: err,
		Message: "the body did not arrive whole: the connection broke, or its length is another than was said"}
}

// arriving is a body of which a part is here. A promise isn't taken at its word: memory comes
// with the bytes.
type arriving struct {
	w     http.ResponseWriter
	from  io.Reader
	most  int // what it may come to
	got   []byte
	whole bool
}

// until reads on until n bytes are here, or the body has ended.
func (b *arriving) until(n int) error {
	if b.most <= smallBody {
		n = b.most + bytes.MinRead // its end belongs to it
	}
	for len(b.got) < n {
		if len(b.got) == cap(b.got) {
			grown := make([]byte, len(b.got), min(max(4*cap(b.got), smallBody), b.most)+bytes.MinRead)
			copy(grown, b.got)
			b.got = grown
		}
		// No more than that: a reader of chunks waits until it has filled what it's given.
		k, err := b.from.Read(b.got[len(b.got):min(cap(b.got), n)])
		b.got = b.got[:len(b.got)+k]
		if err == io.EOF {
			b.whole = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setReadDeadline bounds the reads of the request's connection; the zero time ends that. A
// writer without a connection (in a test) has nothing to bound.
func setReadDeadline(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t)
}

// What a client still sends of a body that was refused is taken and thrown away for this long
// altogether, as long as nothing of it is waited for longer than lingerPiece. A connection that's
// closed on it is reset, and the answer, which says why, lost with it.
const (
	lingerAll   = 15 * time.Second
	lingerPiece = 3 * time.Second
)

// UnreadBody bounds how long the body of a request is waited for that is answered without
// being read: net/http drains what remains before it takes the connection's next request,
// and would do so for ever. Of one that's too large for that, it takes what comes for a while
// after the answer. It belongs before everything else; Read has deadlines of its own.
func UnreadBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		setReadDeadline(w, time.Now().Add(smallPatience))
		body := &watched{ReadCloser: r.Body}
		own := *r
		own.Body = body
		next.ServeHTTP(w, &own)
		// Who waits to be told to send (Expect: 100-continue) has sent nothing until it's read.
		if !body.over.Load() && (body.begun.Load() || r.Header.Get("Expect") == "") {
			linger(w, r.Body)
		}
	})
}

// watched tells whether a body was begun, and has come to its end, or to an error. A transfer's
// reader may be at it for a moment longer than the request lasts.
type watched struct {
	io.ReadCloser
	begun, over atomic.Bool
}

// Read implements io.Reader.
func (b *watched) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.over.Store(true)
	}
	return n, err
}

// linger sends the answer off, and takes what its client still sends.
func linger(w http.ResponseWriter, body io.Reader) {
	end := time.Now().Add(lingerAll)
	setReadDeadline(w, time.Now().Add(lingerPiece)) // net/http takes a short rest itself, before it sends
	if http.NewResponseController(w).Flush() != nil {
		return // the connection isn't this request's any more
	}
	for piece := make([]byte, 8<<10); time.Now().Before(end); setReadDeadline(w, time.Now().Add(lingerPiece)) {
		if _, err := body.Read(piece); err != nil {
			return
		}
	}
}

func tooLarge(limit int) *fleet.Error {
	return fleet.Errorf(protocol.CodeTooLarge, "the body is larger than %d bytes; send less in one request", limit)
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

// SetBody makes body what the next reader of r finds.
func SetBody(r *http.Request, body []byte) {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
}
