package capability

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/drover-fleet/drover/protocol/fault"
)

// marker's own length is taken from the budget of a text that's cut, in bytes.
const markerRoom = 64

// pieces are what streams are read into, one after the other's.
var pieces = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// stream keeps the head and the tail of what a process writes, each at most half bytes,
// and counts all of it. Writing never fails and never blocks for long, so that the process
// is always drained.
type stream struct {
	mu    sync.Mutex
	half  int
	head  []byte
	tail  []byte // a ring once it has half bytes
	at    int    // where the ring's next byte goes
	total int64
	// done: the call was answered; what comes now is only counted.
	done bool
	// spill gets all of it from the moment on when it's more than what is held here.
	spill   func(p []byte)
	spilled bool
	broke   *fault.Panic // the draining failed inside
}

func newStream(limit int, spill func(p []byte)) *stream {
	return &stream{half: (limit + 1) / 2, spill: spill}
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	s.total += int64(n)
	if s.done {
		return n, nil
	}
	if s.total > 2*int64(s.half) {
		s.spillOver(p)
	}
	if room := s.half - len(s.head); room > 0 {
		k := min(room, len(p))
		s.head = append(s.head, p[:k]...)
		p = p[k:]
	}
	if len(p) > s.half {
		p = p[len(p)-s.half:]
	}
	if room := s.half - len(s.tail); room > 0 && len(p) > 0 {
		k := min(room, len(p))
		s.tail = append(s.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(s.tail[s.at:], p)
		s.at = (s.at + k) % s.half
		p = p[k:]
	}
	return n, nil
}

// spillOver passes p on, and before the first one all that came earlier: none of that is
// lost yet, and the ring hasn't turned.
func (s *stream) spillOver(p []byte) {
	if !s.spilled {
		s.spill(s.head)
		s.spill(s.tail)
		s.spilled = true
	}
	s.spill(p)
}

// drain copies r until its end.
func (s *stream) drain(r io.Reader) {
	// The call hears of it; whoever writes isn't held up or hurt.
	defer fault.Catch(func(p *fault.Panic) { s.fail(p); _, _ = io.Copy(io.Discard, r) })
	piece := pieces.Get().(*[32 << 10]byte)
	defer pieces.Put(piece)
	buf := piece[:]
	for {
		n, err := r.Read(buf)
		_, _ = s.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

func (s *stream) fail(p *fault.Panic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broke = p
}

// captured is what was kept of a stream, without a gap when whole.
type captured struct {
	head, tail []byte
	total      int64
	whole      bool
	broke      *fault.Panic // the draining failed inside
}

// take ends the capture and returns what was kept.
func (s *stream) take() captured {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	c := captured{head: s.head, total: s.total, broke: s.broke}
	c.tail = append(append(make([]byte, 0, len(s.tail)), s.tail[s.at:]...), s.tail[:s.at]...)
	s.head, s.tail, s.at = nil, nil, 0
	if c.whole = c.total == int64(len(c.head)+len(c.tail)); c.whole {
		c.head, c.tail = append(c.head, c.tail...), nil
	}
	return c
}

// last returns the latest line that isn't blank, at most 1 KiB of it.
func (s *stream) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := append(append([]byte{}, s.tail[s.at:]...), s.tail[:s.at]...)
	if len(b) == 0 {
		b = s.head
	}
	text := strings.TrimRight(string(b[max(0, len(b)-4096):]), "\r\n\t ")
	if i := strings.LastIndexAny(text, "\r\n"); i >= 0 {
		text = text[i+1:]
	}
	return text[max(0, len(text)-1024):]
}

// texts writes two captures as text within one limit: when both are long each gets half,
// and what one doesn't need goes to the other.
func texts(out, err captured, limit int) (stdout, stderr string, truncated, invalid bool) {
	a, b := out.cost(), err.cost()
	ra, rb := a, b
	if a+b > limit {
		half := limit / 2
		switch {
		case a <= half:
			rb = limit - a
		case b <= half:
			ra = limit - b
		default:
			ra, rb = half, limit-half
		}
	}
	stdout, t1, i1 := out.text(ra)
	stderr, t2, i2 := err.text(rb)
	return stdout, stderr, t1 || t2, i1 || i2
}

// cost is what the whole would cost; at least all that was kept where some is missing.
func (c captured) cost() int {
	n := cost(c.head) + cost(c.tail)
	if !c.whole {
		n += markerRoom
	}
	return n
}

// text writes the capture at a cost of at most budget.
func (c captured) text(budget int) (text string, truncated, invalid bool) {
	if c.whole && cost(c.head) <= budget {
		text, invalid = clean(c.head)
		return text, false, invalid
	}
	head, tail := c.head, c.tail
	if c.whole {
		tail = head
	} else {
		head, tail = head[:wholeRunes(head)], tail[strayBytes(tail):]
	}
	room := max(0, budget-markerRoom) / 2
	head = head[:fitHead(head, room)]
	tail = tail[fitTail(tail, room):]
	a, i1 := clean(head)
	b, i2 := clean(tail)
	return fmt.Sprintf("%s\n… %d bytes left out …\n%s", a, c.total-int64(len(head)+len(tail)), b), true, i1 || i2
}

// runeCost is what a rune costs in an answer: its length as JSON. Bytes that aren't UTF-8,
// and NUL, count for the \xNN that's written for them.
func runeCost(r rune, size int) int {
	switch {
	case r == utf8.RuneError && size <= 1, r == 0:
		return 5
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < 0x20:
		return 6
	}
	return size
}

func cost(b []byte) int {
	n := 0
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		n += runeCost(r, size)
		i += size
	}
	return n
}

// fitHead is how many leading bytes of b cost at most room; it ends between runes.
func fitHead(b []byte, room int) int {
	i := 0
	for i < len(b) {
		r, size := utf8.DecodeRune(b[i:])
		if room -= runeCost(r, size); room < 0 {
			break
		}
		i += size
	}
	return i
}

// fitTail is where the trailing bytes of b begin that cost at most room.
func fitTail(b []byte, room int) int {
	i := len(b)
	for i > 0 {
		r, size := utf8.DecodeLastRune(b[:i])
		if room -= runeCost(r, size); room < 0 {
			break
		}
		i -= size
	}
	return i
}

// wholeRunes is the length of b without a rune that's cut at its end.
func wholeRunes(b []byte) int {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}

// strayBytes counts the bytes at the start of b that belong to a rune that's cut.
func strayBytes(b []byte) int {
	for i := 0; i < len(b) && i < utf8.UTFMax-1; i++ {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return 0
}

// clean writes bytes as text: what isn't UTF-8, and NUL, becomes \xNN.
func clean(b []byte) (text string, invalid bool) {
	if utf8.Valid(b) && !strings.Contains(string(b), "\x00") {
		return string(b), false
	}
	var w strings.Builder
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 || r == 0 {
			fmt.Fprintf(&w, `\x%02x`, b[i])
		} else {
			w.Write(b[i : i+size])
		}
		i += size
	}
	return w.String(), true
}
