// Package transfer is the body of an upload on its way to an agent: how long it may take, and
// whether what the agent says of it afterwards can be true.
package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Body is a request's body. It may take as long as it likes, but not stand still for longer
// than its patience.
type Body struct {
	args     capability.FSUploadIn
	from     io.Reader
	control  *http.ResponseController
	patience time.Duration
	left     int64 // bytes to come, -1 when that isn't known

	mu    sync.Mutex
	until time.Time // the deadline of the read that runs
	over  bool      // the request has been served
	ended bool      // it was read whole
	late  bool      // the client stood still
	broke bool      // it ended before its end
	came  int64     // bytes
	sum   hash.Hash // of them; nil where nobody needs it
}

// New is the body of r, of size bytes, or -1 when that isn't known, for an upload.
func New(w http.ResponseWriter, r *http.Request, size int64, args capability.FSUploadIn, patience time.Duration) *Body {
	b := &Body{args: args, from: r.Body, control: http.NewResponseController(w), patience: patience, left: size, ended: r.Body == http.NoBody}
	if args.SHA256 == "" {
		b.sum = sha256.New()
	}
	return b
}

// Read implements io.Reader. A body of another length than was said is an error.
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	ok := b.bound(time.Now().Add(b.patience))
	b.mu.Unlock()
	if !ok {
		return 0, errServed
	}
	if b.left >= 0 { // and one more, to see whether it ends there
		p = p[:min(int64(len(p)), b.left+1)]
	}
	n, err := b.from.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	// A deadline that passes later would end the request while its answer is waited for.
	b.bound(time.Time{})
	if b.left >= 0 {
		switch {
		case int64(n) > b.left:
			n, err = int(b.left), io.ErrUnexpectedEOF
		case err == io.EOF && int64(n) < b.left:
			err = io.ErrUnexpectedEOF
		}
		b.left -= int64(n)
	}
	if b.came += int64(n); b.sum != nil {
		b.sum.Write(p[:n])
	}
	b.ended = b.ended || err == io.EOF
	b.broke = b.broke || !b.over && err != nil && err != io.EOF
	b.late = b.late || !b.over && errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}

// errServed ends what still reads a body after its request.
var errServed = errors.New("the request has been served")

// bound sets the deadline of the connection's reads, as long as the request is served. b.mu is
// held.
func (b *Body) bound(t time.Time) bool {
	if b.over {
		return false
	}
	b.until = t
	_ = b.control.SetReadDeadline(t) // a writer without a connection (in a test) has none
	return true
}

// Close ends the reading. Where the body wasn't read whole, a read that still waits for the
// client returns, and the connection is of no further use.
func (b *Body) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if !b.ended {
		_ = b.control.SetReadDeadline(time.Now())
	}
}

// Late tells that the client stood still for too long. net/http ends the request's context
// then, as if the client had gone.
func (b *Body) Late() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.late || !b.until.IsZero() && !time.Now().Before(b.until)
}

// Check judges the end of the upload before that's on record. What a host says of a body that
// broke off isn't its doing; what it says of one that it has got must fit what was sent.
func (b *Body) Check(result jsontext.Value, err *fleet.Error) *fleet.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		return b.fits(result)
	case err.Code != protocol.CodeToolFailed || err.Reason != capability.ReasonCut && err.Reason != capability.ReasonPartial:
		return err
	case b.late:
		return &fleet.Error{Code: protocol.CodeBadArgs, Reason: edge.ReasonBodyLate, Err: err,
			Message: fmt.Sprintf("no byte of the body came for %g seconds; go on with what is missing, see Upload-Offset", b.patience.Seconds())}
	case b.broke:
		return &fleet.Error{Code: protocol.CodeBadArgs, Reason: edge.ReasonBodyCut, Err: err,
			Message: fmt.Sprintf("the body did not arrive whole: its connection broke after %d bytes, or its length is another than was said; go on with what is missing, see Upload-Offset", b.came)}
	}
	return err
}

// fits is nil for a result that what was sent can have.
func (b *Body) fits(result jsontext.Value) *fleet.Error {
	var out capability.FSUploadOut
	if err := json.Unmarshal(result, &out); err != nil {
		return untrue("its result can't be read")
	}
	if b.args.Probe {
		return nil
	}
	at, sum := b.args.Offset+b.came, b.args.SHA256
	whole := at
	if b.args.Size >= 0 {
		whole = b.args.Size
	}
	if b.sum != nil && b.args.Offset == 0 {
		sum = hex.EncodeToString(b.sum.Sum(nil))
	}
	switch {
	case !b.ended:
		return untrue("it has got what wasn't sent yet")
	case out.Received != at, out.Complete != (at == whole):
		return untrue(fmt.Sprintf("it has got %d bytes, and %d of %d were sent", out.Received, at, whole))
	case !out.Complete:
		return nil
	case out.Size != whole:
		return untrue(fmt.Sprintf("the file has %d bytes, and %d were sent", out.Size, whole))
	case !strings.EqualFold(out.SHA256, sum):
		return untrue("the file has another SHA-256 than what was sent")
	}
	return nil
}

// untrue is the end of an upload of which the host says what can't be.
func untrue(what string) *fleet.Error {
	return &fleet.Error{Code: protocol.CodeOutcomeUnknown, Reason: "contradiction",
		Message: "what the agent says of the upload can't be true (" + what + "): the file may have the new content, a part of it, or the old one. Check on the host before sending it again"}
}
