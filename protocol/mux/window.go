package mux

import (
	"time"

	"github.com/drover-fleet/drover/protocol"
)

const (
	// maxQueueing is the extra round trip above which a receiver makes its windows smaller:
	// what waits on the way then delays every call on the connection as much.
	maxQueueing = 500 * time.Millisecond
	// lowQueueing is the extra round trip below which windows may grow: twice as much in
	// flight then still queues for less than maxQueueing.
	lowQueueing = 100 * time.Millisecond
	// measureEvery is the time between two measurements once the windows don't grow.
	measureEvery = time.Second

	maxFileWindow = 4 << 20
	minFileWindow = protocol.InitialCredit / 2
	maxConnWindow = 8 << 20
	minConnWindow = protocol.ConnCredit / 4
)

// window is what a receiver lets its peer send, in bytes since its beginning. What was
// granted is never more than limit ahead of what was taken, at the time of the grant: a
// limit that was lowered is reached as what was granted before is used up.
type window struct {
	limit    int64
	granted  int64 // the peer may send up to here
	received int64
	taken    int64 // consumed up to here
	end      int64 // all there will be; -1 when that isn't known
}

func newWindow(limit, end int64) window { return window{limit: limit, granted: limit, end: end} }

// left is what the peer may still send.
func (w *window) left() int64 { return w.granted - w.received }

// due is the credit to give now, 0 when it's not worth a frame yet. Who calls it gives it.
func (w *window) due() int64 {
	want := w.taken + w.limit
	last := w.end >= 0 && want >= w.end
	if last {
		want = w.end
	}
	n := want - w.granted
	if n <= 0 || n < w.limit/4 && !last {
		return 0
	}
	w.granted = want
	return n
}

// meter compares the loaded round trip with the connection's smallest. Under pings.mu.
type meter struct {
	probe int64         // the ping that is measured; 0: none is
	sent  int64         // when it was queued
	base  time.Duration // the smallest round trip; 0: none was measured
	known bool          // base was measured while nothing was under way
	// counted tells that the bytes that came since the ping are known, not only its time.
	counted bool
	next    int64 // when the next one is due
}

// probe sends a ping to be measured, if one is due. The reader calls it, with each chunk of
// a file.
func (s *Session) probe() {
	now := s.now()
	s.pings.mu.Lock()
	m := &s.pings.meter
	if m.probe != 0 || now < m.next {
		s.pings.mu.Unlock()
		return
	}
	n := s.pings.begin(now)
	m.counted = true
	s.pings.mu.Unlock()
	for _, f := range s.in.files {
		f.begin()
	}
	s.in.mark = s.in.conn.received
	s.force(&protocol.Ping{Type: protocol.TypePing, N: n})
}

// begin numbers a ping and has it measured, unless another one is. Under pings.mu.
func (p *pings) begin(now int64) int64 {
	p.last++
	if p.meter.probe == 0 {
		p.meter.probe, p.meter.sent, p.meter.counted = p.last, now, false
	}
	return p.last
}

// measured ends a measurement with the pong n; false when it wasn't of this ping. Under
// pings.mu. While nothing is under way the way's own length is seen, and it may have changed.
func (p *pings) measured(n, now int64, idle bool) (rtt time.Duration, ok bool) {
	m := &p.meter
	if m.probe != n || n == 0 {
		return 0, false
	}
	rtt = time.Duration(now - m.sent)
	if m.base == 0 || idle || rtt < m.base {
		m.base = rtt
	}
	m.known = m.known || idle
	m.probe, m.next = 0, now+int64(measureEvery)
	return rtt, true
}

// learn asks, on the agent's side, how long the way is, as long as that was never seen: when
// the server asks for a sign of life and nothing is under way, it's a good moment. (The
// server learns by its own keep-alive.)
func (s *Session) learn() {
	if s.cfg.Handler == nil || s.cfg.Version < 2 || s.in.receiving > 0 || !s.out.quiet() {
		return
	}
	s.pings.mu.Lock()
	known := s.pings.meter.known
	s.pings.mu.Unlock()
	if !known {
		s.probe()
	}
}

// adapt sets the windows of the files that come in by what a round trip has shown. It's the
// reader's.
func (s *Session) adapt(rtt time.Duration) {
	in := &s.in
	in.sweep()
	if in.receiving == 0 {
		return
	}
	s.pings.mu.Lock()
	base, known, counted := s.pings.meter.base, s.pings.meter.known, s.pings.meter.counted
	s.pings.mu.Unlock()
	// A connection that was busy from its beginning on may have shown nothing but queueing.
	known = known || rtt < lowQueueing
	switch extra := rtt - base; {
	case extra > maxQueueing:
		// What was under way took rtt; so much less would have taken half of what may queue.
		in.careful = true
		part := float64(base+maxQueueing/2) / float64(rtt)
		in.conn.limit = max(int64(float64(in.conn.limit)*part), minConnWindow)
		for _, f := range in.files {
			f.shrink(part)
		}
	case extra < lowQueueing && known && counted:
		if s.grow() {
			s.pings.mu.Lock()
			s.pings.meter.next = 0
			s.pings.mu.Unlock()
		}
	}
}

// grow makes larger the windows that were the limit since the ping; a way that queued once
// is tried in small steps.
func (s *Session) grow() (grew bool) {
	in := &s.in
	room := int64(protocol.MaxFileGrowth)
	for _, f := range in.files {
		room -= f.held() - protocol.InitialCredit
	}
	for _, f := range in.files {
		if n := f.grow(min(room, in.step(f.limit(), protocol.InitialCredit))); n > 0 {
			room -= n
			grew = true
		}
	}
	if c := &in.conn; (c.received-in.mark)*4 >= c.limit && c.limit < maxConnWindow {
		c.limit = min(c.limit+in.step(c.limit, protocol.ConnCredit), maxConnWindow)
		grew = true
	}
	return grew
}

func (in *inbox) step(limit, small int64) int64 {
	if in.careful {
		return small
	}
	return limit
}

// sweep forgets the files that were taken whole or that nobody takes.
func (in *inbox) sweep() {
	kept := in.files[:0]
	for _, f := range in.files {
		if f.holding() {
			kept = append(kept, f)
		}
	}
	clear(in.files[len(kept):])
	in.files = kept
}
