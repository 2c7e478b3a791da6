package jobs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// room is what is left of a job's quota, over both streams.
type room struct {
	mu   sync.Mutex
	left int64
}

// take reserves at most n bytes.
func (r *room) take(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = int(min(int64(n), r.left))
	r.left -= int64(n)
	return n
}

// drain takes a stream of the program's output until its end, so that the program never
// waits for it. The first part is kept in a file; from the first byte that doesn't fit on,
// the rest is counted only, so that the file is the output's beginning without gaps.
type drain struct {
	from   *os.File
	caught chan struct{} // closed when all that was written before catchUp was called is in
	over   chan struct{} // closed at the stream's end
	once   sync.Once

	mu   sync.Mutex
	file *os.File // nil once it's sealed
	room *room
	size Size
}

func newDrain(dir, name string, from *os.File, r *room) (*drain, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &drain{from: from, caught: make(chan struct{}), over: make(chan struct{}), file: f, room: r}, nil
}

func (d *drain) write(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == nil {
		return
	}
	n := 0
	if d.size.Dropped == 0 {
		// A full disk is like a full quota: the job goes on.
		n, _ = d.file.Write(p[:d.room.take(len(p))])
	}
	d.size.Kept += int64(n)
	d.size.Dropped += int64(len(p) - n)
}

// run drains to the end.
func (d *drain) run() {
	defer close(d.over)
	defer d.from.Close()
	defer d.once.Do(func() { close(d.caught) })
	buf := make([]byte, 64<<10)
	for {
		n, err := d.from.Read(buf)
		d.write(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = d.from.SetReadDeadline(time.Time{})
			readRest(d.from, d.write, buf)
			d.once.Do(func() { close(d.caught) })
		case errors.Is(err, io.EOF), err != nil:
			return
		}
	}
}

// catchUp waits until what the program has written before it ended is in, at most limit. A
// process in the background that holds the stream isn't waited for.
func (d *drain) catchUp(limit time.Duration) {
	if d.from.SetReadDeadline(time.Now()) != nil {
		limit = min(limit, time.Second)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-d.caught:
	case <-timer.C:
	}
}

// seal ends the keeping: what comes now is neither kept nor counted.
func (d *drain) seal() Size {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
	return d.size
}

func (d *drain) sizes() Size {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.size
}
