package fault

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link is what a Proxy does to the bytes of one way.
type Link struct {
	// Delay is how long each byte is under way.
	Delay time.Duration
	// Rate is how many bytes pass in a second, of all connections together; 0: any number.
	Rate int64
	// Queue is how many bytes may wait for their turn, as in a router's buffer, before the
	// sender is held up; 64 KiB when zero.
	Queue int
}

// Proxy is a TCP proxy that delays, slows, freezes, cuts and refuses. Its methods may be
// called from any goroutine.
type Proxy struct {
	door
	idle     time.Duration
	up, down line
}

// NewProxy makes a proxy on loopback in front of target (HOST:PORT). It ends with the test,
// and leaves no goroutine.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.up.init()
	p.down.init()
	p.begin(t, target, p.through)
	return p
}

// NewIdleProxy is NewProxy that cuts a connection on which nothing went either way for as
// long as idle.
func NewIdleProxy(t testing.TB, target string, idle time.Duration) *Proxy {
	t.Helper()
	p := &Proxy{idle: idle}
	p.up.init()
	p.down.init()
	p.begin(t, target, p.through)
	return p
}

// Shape sets both ways: up is from who dials, down towards it. Bytes that wait already keep
// their times.
func (p *Proxy) Shape(up, down Link) {
	p.up.shape(up)
	p.down.shape(down)
}

// Freeze stops all connections that are open now without ending them: nothing passes, as
// when a host sleeps or a firewall has forgotten them. New ones pass.
func (p *Proxy) Freeze() { p.freeze(true) }

// Thaw lets the frozen connections go on where they stopped.
func (p *Proxy) Thaw() { p.freeze(false) }

// Strand ends the connections that are open now for who dialled alone: the target hears of it
// only when they are thawed or cut, as when a host moves to another network.
func (p *Proxy) Strand() {
	for _, c := range p.pairs() {
		c.frozen.set(true)
		_ = c.client.SetLinger(0)
		_ = c.client.Close()
	}
}

// Swallow is Freeze for new connections, too, as when a network drops all packets; or lets
// all go on.
func (p *Proxy) Swallow(yes bool) {
	p.mu.Lock()
	p.swallow = yes
	p.mu.Unlock()
	p.freeze(yes)
}

func (p *Proxy) freeze(shut bool) {
	for _, c := range p.pairs() {
		c.frozen.set(shut)
	}
}

// Passed is how many bytes were handed on, each way.
func (p *Proxy) Passed() (up, down int64) { return p.up.passed.Load(), p.down.passed.Load() }

func (p *Proxy) through(c *pair) {
	passed := func() {}
	if p.idle > 0 {
		alarm := time.AfterFunc(p.idle, c.cut)
		defer alarm.Stop()
		passed = func() { alarm.Reset(p.idle) }
	}
	var both sync.WaitGroup
	both.Go(func() { p.flow(c, c.client, c.server, &p.up, passed) })
	both.Go(func() { p.flow(c, c.server, c.client, &p.down, passed) })
	both.Wait()
}

// chunk is some bytes on their way; nil data is the end of what comes.
type chunk struct {
	data []byte
	due  time.Time
}

// flow carries one way of a connection, until it ends, and calls passed for what it takes.
func (p *Proxy) flow(c *pair, from, to *net.TCPConn, l *line, passed func()) {
	// A small buffer here, so that what waits is what Queue says.
	_ = from.SetReadBuffer(64 << 10)
	chunks := make(chan chunk, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		if !p.deliver(c, chunks, to, l) {
			c.cut()
		}
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf[:l.most(len(buf))])
		if n > 0 {
			passed()
			ck := chunk{data: append([]byte(nil), buf[:n]...)}
			var ok bool
			if ck.due, ok = l.enter(n, c.gone); !ok {
				break
			}
			chunks <- ck
		}
		if err != nil {
			chunks <- chunk{due: l.last()}
			break
		}
	}
	close(chunks)
	writer.Wait()
}

// deliver writes the chunks when they're due. After an error it goes on taking them, so that
// the reader is never held up by a connection that has ended.
func (p *Proxy) deliver(c *pair, chunks <-chan chunk, to *net.TCPConn, l *line) (ok bool) {
	ok = true
	for ck := range chunks {
		if ok && !until(ck.due, c.gone) || ok && !c.frozen.wait(c.gone) {
			ok = false
		}
		switch {
		case ck.data == nil:
			_ = to.CloseWrite() // if that fails, the other way ends too
		case ok:
			l.passed.Add(int64(len(ck.data)))
			_, err := to.Write(ck.data)
			ok = err == nil
		}
		l.leave(len(ck.data))
		if !ok {
			c.cut()
		}
	}
	return ok
}

// until waits for a time; false when gone was closed first.
func until(due time.Time, gone <-chan struct{}) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-gone:
		return false
	}
}

// line is one way of a proxy: a bottleneck with a queue before it and a delay behind it.
type line struct {
	passed atomic.Int64

	mu     sync.Mutex
	link   Link
	queued int
	room   chan struct{} // closed and made anew when the queue gets shorter
	free   time.Time     // when the bottleneck has sent all that it was given
}

const defaultQueue = 64 << 10

func (l *line) init() { l.room = make(chan struct{}) }

func (l *line) shape(to Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link = to
}

// most is how much to take at once: with a rate little, so that connections take turns.
func (l *line) most(most int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link.Rate > 0 {
		return min(most, 1460)
	}
	return most
}

// enter takes n bytes into the queue when there's room and tells when they arrive.
func (l *line) enter(n int, gone <-chan struct{}) (due time.Time, ok bool) {
	for {
		l.mu.Lock()
		limit := l.link.Queue
		if limit == 0 {
			limit = defaultQueue
		}
		if l.link.Rate == 0 || l.queued == 0 || l.queued+n <= limit {
			l.queued += n
			now := time.Now()
			l.free = later(l.free, now)
			if l.link.Rate > 0 {
				l.free = l.free.Add(time.Duration(float64(n) / float64(l.link.Rate) * float64(time.Second)))
			}
			due = l.free.Add(l.link.Delay)
			l.mu.Unlock()
			return due, true
		}
		room := l.room
		l.mu.Unlock()
		select {
		case <-room:
		case <-gone:
			return due, false
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// last is when what was taken before has arrived.
func (l *line) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free.Add(l.link.Delay)
}

func (l *line) leave(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued -= n
	close(l.room)
	l.room = make(chan struct{})
}
