package mcpapi

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/protocol/fault"
)

// Pulses of an event stream. Clients give up without a first byte after 60 s, proxies on
// an idle connection after 30 s or more.
const (
	firstPulse = 750 * time.Millisecond
	pulse      = 15 * time.Second
	// writeLimit ends a stream whose client takes nothing for this long.
	writeLimit = time.Minute
)

var (
	pulseBytes = []byte(": ka\n\n")
	// A client of a GET stream that breaks comes back after two seconds.
	retryBytes = []byte("retry: 2000\n\n")
)

// stream is the ResponseWriter that the SDK writes to. Once an event stream has been open
// for a moment, it gets a comment and then one every pulse, so that no client or proxy
// takes a working call for a dead one. Answers of 400 and above are held back until
// finish, which rewrites them.
type stream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	get bool

	mu sync.Mutex
	// The SDK sets headers from two goroutines. It sets one at a time, by a call of Header
	// each, so every call hands out a fresh copy, and the one before is settled: what the
	// pulse may read.
	settled, latest http.Header
	committed       bool
	sse             bool
	status          int // of an answer that is held back, else 0
	held            bytes.Buffer
	timer           *time.Timer
	timed           bool // a write deadline was set
	done            bool
	own             bool // no SDK writes to it: send and answer do

	broke func(*fault.Panic) // hears of a pulse's panic
}

func newStream(w http.ResponseWriter, get, pulses bool, broke func(*fault.Panic)) *stream {
	s := &stream{w: w, rc: http.NewResponseController(w), get: get, settled: http.Header{}, latest: http.Header{}, broke: broke}
	if pulses {
		s.start()
	}
	return s
}

// start begins the pulses.
func (s *stream) start() {
	s.mu.Lock() // beat may not see the timer unset
	s.timer = time.AfterFunc(firstPulse, s.beat)
	s.mu.Unlock()
}

// Header implements http.ResponseWriter.
func (s *stream) Header() http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = s.latest
	s.latest = maps.Clone(s.latest)
	return s.latest
}

// WriteHeader implements http.ResponseWriter.
func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(s.latest, status)
}

// begin commits a header; mu is held.
func (s *stream) begin(h http.Header, status int) {
	if s.committed || s.status != 0 {
		if s.committed && status >= 400 {
			s.status = status // comes as an event: the status line is gone
		}
		return
	}
	if status >= 400 {
		s.status = status
		return
	}
	s.committed = true
	maps.Copy(s.w.Header(), h)
	s.sse = strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
	if s.sse {
		s.w.Header().Set("X-Accel-Buffering", "no")
	}
	s.w.WriteHeader(status)
	if s.sse && s.get {
		_, _ = s.w.Write(retryBytes)
	}
}

var errStreamDone = errors.New("the response is finished")

// Write implements http.ResponseWriter.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return 0, errStreamDone
	}
	if s.status == 0 {
		s.begin(s.latest, http.StatusOK)
	}
	if s.status != 0 {
		return s.held.Write(b)
	}
	s.patience()
	if s.sse {
		if answer := inOurWords(b); answer != nil {
			_, err := s.w.Write(answer)
			return len(b), err
		}
	}
	return s.w.Write(b)
}

// Flush is called by http.ResponseController.
func (s *stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.committed && !s.done {
		_ = s.rc.Flush() // the next write reports a broken connection
	}
}

// patience bounds the next write of an event stream; mu is held.
func (s *stream) patience() {
	if s.sse && s.rc.SetWriteDeadline(time.Now().Add(writeLimit)) == nil {
		s.timed = true
	}
}

// beat writes a comment if this is an event stream, and comes again.
func (s *stream) beat() {
	defer fault.Catch(s.broke) // it's the last one then
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || s.status != 0 {
		return
	}
	if s.own && !s.committed {
		s.beginOwn()
	}
	if !s.committed && strings.HasPrefix(s.settled.Get("Content-Type"), "text/event-stream") {
		s.begin(s.settled, http.StatusOK)
	}
	next := pulse
	switch {
	case s.sse:
		s.patience()
		if _, err := s.w.Write(pulseBytes); err != nil {
			return
		}
		_ = s.rc.Flush()
	case s.committed:
		return // not a stream
	default:
		next = firstPulse
	}
	s.timer.Reset(next)
}

// end stops the pulses and returns what was held back: its status, 0 if there is none, and
// whether the stream's header is out already.
func (s *stream) end() (status int, body []byte, committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.timed {
		// A deadline would outlive this response on its connection.
		_ = s.rc.SetWriteDeadline(time.Time{})
	}
	return s.status, s.held.Bytes(), s.committed
}
