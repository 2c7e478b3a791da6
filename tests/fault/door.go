package fault

import (
	"net"
	"sync"
	"testing"
)

// door accepts connections on loopback and opens one to the target for each. Proxy and
// Wire are doors with something done in between.
type door struct {
	target string
	listen net.Listener
	pass   func(*pair)
	all    sync.WaitGroup

	mu       sync.Mutex
	open     map[*pair]struct{}
	refuse   bool
	swallow  bool
	closed   bool
	accepted int
}

// pair is one connection through a door.
type pair struct {
	client, server *net.TCPConn
	gone           chan struct{} // closed by cut
	once           sync.Once
	// Of a Proxy:
	frozen *gate
}

// cut ends both connections at once: what was on the way is lost.
func (p *pair) cut() {
	p.once.Do(func() {
		close(p.gone)
		for _, c := range []*net.TCPConn{p.client, p.server} {
			_ = c.SetLinger(0) // a reset, as from a host that knows nothing of the connection
			_ = c.Close()
		}
	})
}

// finish ends both connections in order: what was written still arrives.
func (p *pair) finish() {
	p.once.Do(func() {
		close(p.gone)
		_, _ = p.client.CloseWrite(), p.server.CloseWrite()
		_, _ = p.client.Close(), p.server.Close()
	})
}

// begin listens until the test ends. target is HOST:PORT.
func (d *door) begin(t testing.TB, target string, pass func(*pair)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.target, d.listen, d.pass, d.open = target, l, pass, map[*pair]struct{}{}
	d.all.Go(d.accept)
	t.Cleanup(d.end)
}

func (d *door) end() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	_ = d.listen.Close()
	d.Cut()
	d.all.Wait()
}

func (d *door) accept() {
	for {
		c, err := d.listen.Accept()
		if err != nil {
			return
		}
		d.all.Go(func() { d.enter(c.(*net.TCPConn)) })
	}
}

// enter takes one client through to the target and returns when its connection has ended.
func (d *door) enter(client *net.TCPConn) {
	d.mu.Lock()
	away, target := d.refuse || d.closed, d.target
	d.mu.Unlock()
	var server net.Conn
	var err error
	if !away {
		server, err = net.Dial("tcp", target)
	}
	if away || err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	p := &pair{client: client, server: server.(*net.TCPConn), gone: make(chan struct{}), frozen: newGate()}
	d.mu.Lock()
	d.open[p] = struct{}{}
	d.accepted++
	p.frozen.set(d.swallow)
	away = d.refuse || d.closed // meanwhile
	d.mu.Unlock()
	if away {
		p.cut()
	}
	d.pass(p)
	p.cut()
	d.mu.Lock()
	delete(d.open, p)
	d.mu.Unlock()
}

// pairs are the connections that are open now.
func (d *door) pairs() []*pair {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*pair
	for p := range d.open {
		out = append(out, p)
	}
	return out
}

// Addr is where it listens, HOST:PORT; URL is the same for HTTP.
func (d *door) Addr() string { return d.listen.Addr().String() }

// URL is where it listens, without a path.
func (d *door) URL() string { return "http://" + d.Addr() }

// Cut resets all connections that are open now. New ones are let in.
func (d *door) Cut() {
	for _, p := range d.pairs() {
		p.cut()
	}
}

// Lead takes every new connection to another target, HOST:PORT, from now on.
func (d *door) Lead(target string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.target = target
}

// Refuse resets every new connection from now on, or no longer.
func (d *door) Refuse(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = yes
}

// Accepted is how many connections have come through so far.
func (d *door) Accepted() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.accepted
}

// gate holds up whoever passes while it's shut.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
}

func newGate() *gate { return &gate{} }

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// wait returns when the gate is open; false when gone was closed first.
func (g *gate) wait(gone <-chan struct{}) bool {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return true
		}
		select {
		case <-shut:
		case <-gone:
			return false
		}
	}
}
