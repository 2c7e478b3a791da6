package spool

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// spare is what one stream leaves of a call's quota for the other.
const spare = 2 << 20

// Call is what is kept of one call. It's safe for concurrent use; a nil *Call keeps nothing.
type Call struct {
	spool *Spool
	id    string
	dir   string

	// meta.Principal is fixed; meta.At changes once, at the end, under both locks.
	mu    sync.Mutex
	meta  meta
	files map[Stream]*file
	begun bool
	full  bool // nothing more is written
	ended bool // changes under both locks
}

type file struct {
	*os.File // nil when it's only to be read
	size     int64
}

// size is how many bytes are kept. The call has ended, or its lock is held.
func (c *Call) size() int64 {
	n := int64(0)
	for _, f := range c.files {
		n += f.size
	}
	return n
}

// Write keeps p, or as much of it as the limits let. From the first byte on that isn't kept,
// nothing is, so that what is kept has no gap.
func (c *Call) Write(name Stream, p []byte) {
	if c == nil || len(p) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	n := 0
	if !c.full {
		n = c.write(name, p)
	}
	if n < len(p) {
		c.full, c.meta.Whole = true, false
	}
}

func (c *Call) write(name Stream, p []byte) int {
	p = p[:min(int64(len(p)), c.room(name))]
	if len(p) == 0 || !c.spool.take(c.meta.Principal, int64(len(p))) {
		return 0
	}
	n := 0
	f, err := c.file(name)
	if err == nil {
		n, err = f.Write(p)
		f.size += int64(n)
	}
	if err != nil {
		c.spool.log.Warn("an output isn't kept", "call", c.id, "err", err)
	}
	c.spool.giveBack(c.meta.Principal, int64(len(p)-n))
	return n
}

// room is what the call's quota leaves for a stream.
func (c *Call) room(name Stream) int64 {
	left := c.spool.lim.PerCall - c.size()
	other := Stdout
	if name == Stdout {
		other = Stderr
	}
	have := int64(0)
	if f := c.files[other]; f != nil {
		have = f.size
	}
	return max(0, left-max(0, min(spare, c.spool.lim.PerCall/4)-have))
}

// file opens a stream's file, and first the call's folder.
func (c *Call) file(name Stream) (*file, error) {
	if !c.begun {
		if err := os.Mkdir(c.dir, 0o700); err != nil {
			return nil, err
		}
		c.begun = true
		if err := c.meta.write(c.dir); err != nil {
			return nil, err
		}
		c.spool.mu.Lock()
		c.spool.calls[c.id] = c
		c.spool.mu.Unlock()
	}
	if f := c.files[name]; f != nil {
		return f, nil
	}
	f, err := os.OpenFile(filepath.Join(c.dir, string(name)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	c.files[name] = &file{File: f}
	return c.files[name], nil
}

// End tells that no more comes. kept: at least a part of the output can be read from now on;
// whole: all of it.
func (c *Call) End() (kept, whole bool) {
	if c == nil {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spool.mu.Lock()
	defer c.spool.mu.Unlock()
	if !c.ended {
		c.spool.ran(c.meta.Principal, c.size())
	}
	c.ended, c.meta.Ended, c.meta.At = true, true, time.Now().UTC()
	var err error
	for _, f := range c.files {
		err = errors.Join(err, f.Close())
		f.File = nil
	}
	switch {
	case !c.begun:
		return false, false
	case c.size() == 0:
		c.spool.remove(c)
		return false, false
	}
	if err = errors.Join(err, c.meta.write(c.dir)); err != nil {
		// After a restart it counts as cut off; what is there can be read.
		c.spool.log.Warn("the end of a kept output can't be written", "call", c.id, "err", err)
	}
	return true, c.meta.Whole
}

func (c *Call) kept(name Stream) Kept {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Kept{Ended: c.ended, Whole: c.meta.Whole}
	if f := c.files[name]; f != nil {
		out.Size = f.size
	}
	return out
}
