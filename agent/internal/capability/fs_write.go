package capability

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// absent as if_sha256 asks that there be no file.
const absent = "absent"

// write is one fs_write on its way.
type write struct {
	host    *Host
	path    string // the caller's own
	place   *guard.Place
	content []byte
	mode    fs.FileMode
	setMode bool        // the caller gave a mode
	old     fs.FileInfo // nil: there's no file
	expect  string      // if_sha256
}

// fsWrite replaces or creates a file: the content is written beside it, synced, given the
// old file's mode, owner and attributes, and renamed over it. Until the rename nothing has
// changed, and after an error nothing has.
func (h *Host) fsWrite(ctx context.Context, _ *run.Call, in capability.FSWriteIn) (capability.FSWriteOut, error) {
	none := capability.FSWriteOut{}
	w, err := h.newWrite(in)
	if err != nil {
		return none, err
	}
	if w.place, err = h.Files.Resolve(in.Path); err != nil {
		return none, err
	}
	defer w.place.Close()
	defer h.locks.lock(w.place.Path())()
	made, err := w.parents(in.CreateParents)
	if err == nil {
		err = w.look(ctx)
	}
	if err == nil {
		err = w.replace(ctx)
	}
	for _, dir := range slices.Backward(made) {
		if err != nil {
			_ = dir.Remove() // fails where somebody used it meanwhile, rightly
		}
		dir.Close()
	}
	if err != nil {
		return none, err
	}
	sum := sha256.Sum256(w.content)
	return capability.FSWriteOut{Path: guard.Escape(w.place.Path()), Size: int64(len(w.content)),
		SHA256: hex.EncodeToString(sum[:]), Mode: modeOf(w.mode), Created: w.old == nil}, nil
}

// newWrite checks the arguments that the schema can't.
func (h *Host) newWrite(in capability.FSWriteIn) (*write, error) {
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		b, err := base64.StdEncoding.Strict().DecodeString(in.Content)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeBadArgs, "content isn't base64 (the standard alphabet, padded, without line breaks)")
		}
		content = b
	}
	w, err := h.writeTo(in.Path, in.Mode, in.IfSHA256)
	if err != nil {
		return nil, err
	}
	w.content = content
	return w, nil
}

// writeTo is a write without its content.
func (h *Host) writeTo(path, mode, expect string) (*write, error) {
	w := &write{host: h, path: path, mode: 0o644, expect: strings.ToLower(expect)}
	if mode != "" {
		n, err := strconv.ParseUint(mode, 8, 12)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeBadArgs, "mode must be octal digits, 0000 to 7777, such as 0644")
		}
		w.mode, w.setMode = fileMode(uint32(n)), true
	}
	if w.expect != "" && w.expect != absent && !isSHA256(w.expect) {
		return nil, protocol.Errorf(protocol.CodeBadArgs, "if_sha256 must be 64 hex digits, or the word absent")
	}
	return w, nil
}

// isSHA256 tells whether s is a SHA-256 in lower-case hex.
func isSHA256(s string) bool { return regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(s) }

// fileMode makes Go's mode of octal digits with the set-id and sticky bits.
func fileMode(n uint32) fs.FileMode {
	m := fs.FileMode(n & 0o777)
	if n&0o4000 != 0 {
		m |= fs.ModeSetuid
	}
	if n&0o2000 != 0 {
		m |= fs.ModeSetgid
	}
	if n&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}

func (w *write) shown() string { return guard.Shown(guard.Unescape(w.path)) }

func (w *write) failed(err error) error { return w.host.sysError(err, w.path, "can't be written") }

// look finds what's there now and whether it may be replaced.
func (w *write) look(ctx context.Context) error {
	w.old = nil
	info, err := w.place.Lstat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if w.expect != "" && w.expect != absent {
			return protocol.Failf(protocol.ReasonSHAMismatch, "%s isn't there any more; nothing was written", w.shown())
		}
		return nil
	case err != nil:
		return w.failed(err)
	}
	if err := regular(info, w.path); err != nil {
		return err
	}
	w.old = info
	if !w.setMode {
		w.mode = info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	}
	if w.expect == absent {
		return protocol.Failf(protocol.ReasonEEXIST, "%s exists already, and if_sha256 says absent; nothing was written", w.shown())
	}
	// A rename needs no right to the file itself; the host's owner who took that right away
	// meant it. A running program (ETXTBSY) may be replaced: it goes on with the old file.
	f, err := w.place.Open(os.O_WRONLY|openFlags, 0)
	if err == nil {
		_ = f.Close()
	} else if !errors.Is(err, syscall.ETXTBSY) {
		return w.failed(err)
	}
	return w.compare(ctx)
}

// compare checks the present content against if_sha256.
func (w *write) compare(ctx context.Context) error {
	if w.expect == "" {
		return nil
	}
	f, _, err := w.host.openRegular(w.place, w.path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := hashOf(ctx, f, math.MaxInt64)
	if err != nil {
		return w.failed(err)
	}
	if sum != w.expect {
		return protocol.Failf(protocol.ReasonSHAMismatch, "%s was changed meanwhile (its SHA-256 is %s); nothing was written. Read it again and decide", w.shown(), sum)
	}
	return nil
}

// parents makes missing folders when asked to, and returns what it made.
func (w *write) parents(create bool) (made []*guard.Place, err error) {
	if w.place.FolderMissing() && !create {
		return nil, protocol.Failf(protocol.ReasonENOENT, "the folder of %s isn't there; create_parents makes missing folders", w.shown())
	}
	if made, err = w.place.MakeParents(0o755); err != nil {
		return made, w.failed(err)
	}
	return made, nil
}

// replace writes a temporary file in the same folder and puts it in the place.
func (w *write) replace(ctx context.Context) error {
	temp := w.place.Beside(".drover-" + rand.Text() + ".tmp")
	f, err := temp.Open(os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return w.failed(err)
	}
	placed := false
	defer func() {
		_ = f.Close()
		if !placed {
			_ = temp.Remove()
		}
	}()
	if _, err := io.Copy(f, bytes.NewReader(w.content)); err != nil {
		return w.failed(err)
	}
	placed, err = w.finish(ctx, f, temp)
	return err
}

// finish puts the temporary file, which has the new content and is open as f, in the place.
// placed tells whether that's done; an error may come after it.
func (w *write) finish(ctx context.Context, f *os.File, temp *guard.Place) (placed bool, err error) {
	if err := w.dress(f); err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil {
		return false, w.failed(err)
	}
	if err := f.Close(); err != nil {
		return false, w.failed(err)
	}
	if ctx.Err() != nil {
		return false, run.Ended(ctx, "nothing was written")
	}
	if err := w.put(temp); err != nil {
		return false, err
	}
	if err := w.place.SyncFolder(); err != nil {
		return true, protocol.Failf(protocol.ReasonIO, "%s was written, but its folder could not be synced: after a power failure the old content may be back", w.shown())
	}
	return true, nil
}

// dress gives the new file the old one's owner and attributes, then its mode.
func (w *write) dress(f *os.File) error {
	if w.old != nil {
		old, err := w.place.Open(os.O_RDONLY|openFlags, 0)
		if err == nil {
			defer old.Close()
		} // without it, attributes that only reading shows are lost; owner and mode aren't
		if err := keepAttributes(f, old, w.old); err != nil {
			var pe *protocol.Error
			if errors.As(err, &pe) {
				return pe
			}
			return w.failed(err)
		}
	}
	if err := f.Chmod(w.mode); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return w.failed(err)
	}
	return nil
}

// put moves the new file into the place. One that must not exist is linked, which fails
// where a rename would replace what somebody else has just made.
func (w *write) put(temp *guard.Place) error {
	if w.expect == absent {
		err := temp.Link(w.place)
		if errors.Is(err, fs.ErrExist) {
			return protocol.Failf(protocol.ReasonEEXIST, "%s has been made by somebody else meanwhile; nothing was written", w.shown())
		}
		if err == nil {
			_ = temp.Remove()
			return nil
		} // a file system without hard links
	}
	if err := temp.Rename(w.place); err != nil {
		return w.failed(err)
	}
	return nil
}
