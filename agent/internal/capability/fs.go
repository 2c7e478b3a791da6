package capability

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// describer writes file infos as entries.
type describer struct {
	files  *guard.Files
	owners *owners
}

// entry describes a place. info is of the place itself, not of what a link leads to.
func (d *describer) entry(place *guard.Place, name string, info fs.FileInfo) capability.FSEntry {
	e := capability.FSEntry{Name: guard.Escape(name), Path: guard.Escape(place.Path()), Type: typeOf(info.Mode()),
		Size: info.Size(), Mode: modeOf(info.Mode()), Modified: stamp(info.ModTime())}
	e.Owner, e.Group = d.owners.of(info)
	if e.Type != "link" {
		return e
	}
	if !d.files.Confined() {
		if target, err := place.Readlink(); err == nil {
			e.Target = guard.Escape(target)
		}
		return e
	}
	// Where a link leads is told only when that's within the roots.
	if to, target, ok := d.files.Leads(place); ok {
		to.Close()
		e.Target = guard.Escape(target)
	}
	return e
}

func typeOf(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "dir"
	case m&fs.ModeSymlink != 0:
		return "link"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "other"
}

// modeOf writes permissions with the set-id and sticky bits as four octal digits.
func modeOf(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, is := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&is != 0 {
			n |= bit
		}
	}
	return fmt.Sprintf("%04o", n)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// openRegular opens a regular file for reading, and nothing else: pipes, devices and
// sockets are refused before they're opened, since opening one may block or do something,
// and again on what was really opened.
func (h *Host) openRegular(place *guard.Place, path string) (*os.File, fs.FileInfo, error) {
	info, err := place.Lstat()
	if err != nil {
		return nil, nil, h.sysError(err, path, "can't be read")
	}
	if err := regular(info, path); err != nil {
		return nil, nil, err
	}
	f, err := place.Open(os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, nil, h.sysError(err, path, "can't be read")
	}
	if info, err = f.Stat(); err == nil {
		err = regular(info, path)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, h.sysError(err, path, "can't be read")
	}
	return f, info, nil
}

// regular refuses all but regular files.
func regular(info fs.FileInfo, path string) error {
	shown := guard.Shown(guard.Unescape(path))
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return protocol.Failf(protocol.ReasonEISDIR, "%s is a folder; fs_list shows what's in it", shown)
	}
	return protocol.Failf(protocol.ReasonNotRegular, "%s is a %s, not a regular file", shown, typeOf(info.Mode()))
}

// hashOf is the hex SHA-256 of what r has, at most limit bytes; ctx ends it.
func hashOf(ctx context.Context, r io.Reader, limit int64) (string, error) {
	sum := sha256.New()
	buf := make([]byte, 256<<10)
	for limit >= 0 {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := r.Read(buf)
		sum.Write(buf[:n])
		limit -= int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	if limit < 0 {
		return "", protocol.Errorf(protocol.CodeTooLarge, "the file grew beyond what's hashed")
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// pathLocks lets one writer at a time change a path.
type pathLocks struct {
	mu   sync.Mutex
	held map[string]*pathLock
}

type pathLock struct {
	sync.Mutex
	users int
}

// lock takes the path's lock and returns its release.
func (l *pathLocks) lock(path string) func() {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*pathLock{}
	}
	p := l.held[path]
	if p == nil {
		p = &pathLock{}
		l.held[path] = p
	}
	p.users++
	l.mu.Unlock()
	p.Lock()
	return func() {
		p.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(l.held, path)
		}
	}
}
