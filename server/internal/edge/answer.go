package edge

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// answerPatience is how long a client may take none of an answer's next answerPiece bytes.
	answerPatience = time.Minute
	answerPiece    = 64 << 10
	// lastPatience is how long all that's still written of an answer may take after Cut.
	lastPatience = time.Second
)

// UnreadAnswer ends the connection of a client that doesn't read its answer: each 64 KiB of
// it have a minute to leave. How long an answer takes to begin isn't bounded, nor how long
// it is, nor the pause between two of its parts. It belongs before everything else.
func UnreadAnswer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}
		b.patience() // an earlier request on this connection may have left a deadline that has passed
		defer b.served()
		next.ServeHTTP(b, r)
	})
}

// Cut ends the patience with the client of an answer whose request has lost its right, or its
// use: a write that its client doesn't take ends within a second, and what's written from then
// on has a second altogether, an error to say so among it. Nothing is cut of an answer that the
// handlers are done with. It may be called from any goroutine, and needs UnreadAnswer.
func Cut(w http.ResponseWriter) {
	for {
		if b, ok := w.(*boundedWriter); ok {
			b.cutOff()
			return
		}
		wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return
		}
		w = wrapped.Unwrap()
	}
}

// boundedWriter sets a deadline before each write.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController

	mu      sync.Mutex
	gone    bool      // the connection was taken over
	over    bool      // the handlers are done: the connection may be another request's
	writing bool      // a write runs
	cut     bool      // Cut was called
	until   time.Time // when the rest must be written; zero: nothing was since the cut
}

// patience bounds the next write. A writer without a connection (in a test) has nothing to
// bound.
func (b *boundedWriter) patience() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bound()
}

// bound is patience; mu is held.
func (b *boundedWriter) bound() {
	if b.gone {
		return
	}
	now := time.Now()
	end := now.Add(answerPatience)
	if b.cut {
		if b.until.IsZero() {
			b.until = now.Add(lastPatience)
		}
		end = b.until
	}
	_ = b.control.SetWriteDeadline(end)
}

// cutOff is Cut.
func (b *boundedWriter) cutOff() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.cut {
		return
	}
	if b.cut = true; b.writing {
		b.bound()
	}
}

// begin bounds a write, and end tells that it's over.
func (b *boundedWriter) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = true
	b.bound()
}

func (b *boundedWriter) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = false
}

// served is the handlers' end: net/http writes that of the answer.
func (b *boundedWriter) served() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bound()
	b.over = true
}

// Write implements http.ResponseWriter.
func (b *boundedWriter) Write(p []byte) (n int, err error) {
	for {
		piece := p[:min(len(p), answerPiece)]
		k, err := b.write(piece)
		n += k
		if p = p[len(piece):]; err != nil || len(p) == 0 {
			return n, err
		}
	}
}

func (b *boundedWriter) write(p []byte) (int, error) {
	b.begin()
	defer b.end()
	return b.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (b *boundedWriter) Flush() {
	b.begin()
	defer b.end()
	_ = b.control.Flush() // the next write reports a broken connection
}

// Hijack implements http.Hijacker. The connection comes without deadlines.
func (b *boundedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := b.control.Hijack()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = err == nil
	return conn, rw, err
}

// Unwrap serves http.ResponseController.
func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }
