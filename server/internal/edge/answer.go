package edge

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

const (
	// answerPatience is how long a client may take none of an answer's next answerPiece bytes.
	answerPatience = time.Minute
	answerPiece    = 64 << 10
)

// UnreadAnswer ends the connection of a client that doesn't read its answer: each 64 KiB of
// it have a minute to leave. How long an answer takes to begin isn't bounded, nor how long
// it is, nor the pause between two of its parts. It belongs before everything else.
func UnreadAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		b.patience() // an earlier request on this connection may have left a deadline that has passed
		// net/http writes the answer's end after the handlers.
		defer b.patience()
		next.ServeHTTP(b, r)
	})
}

// boundedWriter sets a deadline before each write.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	gone    bool // the connection was taken over
}

// patience bounds the next write. A writer without a connection (in a test) has nothing to
// bound.
func (b *boundedWriter) patience() {
	if !b.gone {
		_ = b.control.SetWriteDeadline(time.Now().Add(answerPatience))
	}
}

// Write implements http.ResponseWriter.
func (b *boundedWriter) Write(p []byte) (n int, err error) {
	for {
		piece := p[:min(len(p), answerPiece)]
		b.patience()
		k, err := b.ResponseWriter.Write(piece)
		n += k
		if p = p[len(piece):]; err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// Flush implements http.Flusher.
func (b *boundedWriter) Flush() {
	b.patience()
	_ = b.control.Flush() // the next write reports a broken connection
}

// Hijack implements http.Hijacker. The connection comes without deadlines.
func (b *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := b.control.Hijack()
	b.gone = err == nil
	return conn, rw, err
}

// Unwrap serves http.ResponseController.
func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }
