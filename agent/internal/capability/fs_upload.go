package capability

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// upload is one file on its way to this host.
type upload struct {
	*write
	in   capability.FSUploadIn
	part *guard.Place // what came until now, beside the target
	file *os.File     // part, open
	sum  hash.Hash    // of what came, when it came from the beginning
	have int64        // bytes in part
}

// fsUpload replaces or creates a file by a stream. What comes is written beside the target,
// and put in its place as fs_write does it once it's whole and what was promised. One upload
// of an id runs at a time; the path itself is locked for the end alone.
func (h *Host) fsUpload(ctx context.Context, c *run.Call, in capability.FSUploadIn) (capability.FSUploadOut, error) {
	none := capability.FSUploadOut{}
	u, err := h.newUpload(in)
	if err != nil {
		return none, err
	}
	if u.place, err = h.Files.Resolve(in.Path); err != nil {
		return none, err
	}
	defer u.place.Close()
	name := partName(c.Caller.Principal, in.UploadID)
	u.part = u.place.Beside(name)
	release, ok := h.parts.claim(u.part.Path())
	if !ok {
		return none, &protocol.Error{Code: protocol.CodeConflict, Reason: capability.ReasonInUse, Message: "an upload of this id is under way; wait for its end, or cancel it"}
	}
	defer release()
	if in.Probe {
		return u.probe(ctx)
	}
	made, err := u.parents(in.CreateParents)
	u.part = u.place.Beside(name) // in the folder that's there now
	out, err := u.run(ctx, c, err)
	for _, dir := range slices.Backward(made) {
		if err != nil {
			_ = dir.Remove() // fails where something is in it, rightly
		}
		dir.Close()
	}
	return out, err
}

// newUpload checks the arguments that the schema can't.
func (h *Host) newUpload(in capability.FSUploadIn) (*upload, error) {
	in.SHA256 = strings.ToLower(in.SHA256)
	w, err := h.writeTo(in.Path, in.Mode, in.IfSHA256)
	switch {
	case err != nil:
		return nil, err
	case in.SHA256 != "" && !isSHA256(in.SHA256):
		err = protocol.Errorf(protocol.CodeBadArgs, "sha256 must be 64 hex digits")
	case in.UploadID != "" && (in.SHA256 == "" || in.Size < 0):
		err = protocol.Errorf(protocol.CodeBadArgs, "an upload that can be resumed needs its size and its sha256")
	case in.UploadID == "" && (in.Offset > 0 || in.Probe):
		err = protocol.Errorf(protocol.CodeBadArgs, "only an upload with an upload_id can be resumed")
	case in.Size >= 0 && in.Offset > in.Size:
		err = protocol.Errorf(protocol.CodeBadArgs, "offset is beyond size")
	}
	return &upload{write: w, in: in}, err
}

// partName is the name of what an upload has sent until now. The id is the principal's own:
// another one's upload of the same id has nothing to do with it. Without an id it's of no use
// to a later one.
func partName(principal, id string) string {
	if id == "" {
		return partPrefix + rand.Text() + ".tmp"
	}
	sum := sha256.Sum256([]byte(principal + "\x00" + id))
	return partPrefix + hex.EncodeToString(sum[:16]) + partSuffix
}

// probe tells how much of the upload is there: its part, or the whole in its place.
func (u *upload) probe(ctx context.Context) (capability.FSUploadOut, error) {
	out := capability.FSUploadOut{Path: guard.Escape(u.place.Path())}
	if u.place.FolderMissing() {
		return out, nil
	}
	switch info, err := u.part.Lstat(); {
	case err == nil && info.Mode().IsRegular():
		out.Received = min(info.Size(), u.in.Size)
		return out, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return capability.FSUploadOut{}, u.failed(err)
	}
	info, err := u.place.Lstat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != u.in.Size {
		return out, nil
	}
	f, info, err := u.host.openRegular(u.place, u.path)
	if err != nil {
		return out, nil // what can't be read isn't known to be there
	}
	defer f.Close()
	sum, err := hashOf(ctx, f, math.MaxInt64)
	if err != nil {
		return capability.FSUploadOut{}, u.failed(err)
	}
	if sum == u.in.SHA256 {
		out.Received, out.Complete, out.Size, out.SHA256, out.Mode = u.in.Size, true, u.in.Size, sum, modeOf(info.Mode())
	}
	return out, nil
}

// run takes the bytes and puts them in place. err is that of making the folders.
func (u *upload) run(ctx context.Context, c *run.Call, err error) (capability.FSUploadOut, error) {
	if err == nil {
		err = u.look(ctx) // so that nothing is sent in vain
	}
	if err == nil {
		u.host.parts.prune(u.place)
		err = u.open()
	}
	if err != nil {
		return capability.FSUploadOut{}, err
	}
	kept := false
	defer func() {
		_ = u.file.Close()
		if !kept {
			_ = u.part.Remove()
		}
	}()
	out := capability.FSUploadOut{Path: guard.Escape(u.place.Path())}
	if err = u.receive(ctx, c); err == nil && u.have < u.in.Size {
		kept, out.Received = true, u.have // a part, as announced
	} else if err == nil {
		kept, err = u.complete(ctx, &out)
	}
	if err == nil && out.Complete {
		return out, nil
	}
	if err != nil && !kept && ctx.Err() != nil {
		err = u.interrupted(ctx, err)
	}
	if u.in.UploadID != "" && (err == nil || resumable(err)) {
		kept = true
		u.host.parts.keep(u.host.Files, u.path, u.part, u.host.Log)
	}
	if err != nil {
		return capability.FSUploadOut{}, err
	}
	return out, nil
}

// resumable tells whether what came of an upload is of use to a later try.
func resumable(err error) bool {
	var pe *protocol.Error
	if !errors.As(err, &pe) {
		return false
	}
	return pe.Reason == capability.ReasonPartial || pe.Code == protocol.CodeCancelled || pe.Code == protocol.CodeTimedOut
}

// open opens the part and cuts it to where the stream goes on.
func (u *upload) open() error {
	flags := os.O_RDWR | os.O_CREATE | openFlags
	if u.in.UploadID == "" {
		flags |= os.O_EXCL
	}
	f, err := u.part.Open(flags, 0o600)
	if err != nil {
		return u.failed(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = u.failed(err)
	case !private(info):
		err = protocol.Failf(protocol.ReasonEEXIST, "%s is in the way and not this agent's own; remove it", guard.Shown(u.part.Path()))
	case u.in.Offset > info.Size():
		err = &protocol.Error{Code: protocol.CodeConflict, Reason: capability.ReasonOffset,
			Message: "less of this upload is on the host than that offset says; ask how much there is, and go on there"}
	default:
		u.have = u.in.Offset
		if err = f.Truncate(u.have); err == nil {
			_, err = f.Seek(u.have, io.SeekStart)
		}
		if err != nil {
			err = u.failed(err)
		}
	}
	if err != nil {
		if info != nil && info.Size() == 0 && private(info) { // most likely just made
			_ = u.part.Remove()
		}
		_ = f.Close()
		return err
	}
	u.file, u.sum = f, nil
	if u.have == 0 {
		u.sum = sha256.New()
	}
	return nil
}

// receive writes what the stream brings into the part.
func (u *upload) receive(ctx context.Context, c *run.Call) error {
	from, size, err := c.In(ctx)
	if err != nil {
		return u.interrupted(ctx, err)
	}
	if size >= 0 && u.in.Size >= 0 && u.have+size > u.in.Size {
		return u.tooMuch()
	}
	buf := make([]byte, pieceBytes)
	for {
		if ctx.Err() != nil {
			return u.interrupted(ctx, context.Cause(ctx))
		}
		n, rerr := from.Read(buf)
		if u.in.Size >= 0 && u.have+int64(n) > u.in.Size {
			return u.tooMuch()
		}
		if n > 0 {
			if u.sum != nil {
				u.sum.Write(buf[:n])
			}
			if _, err := u.file.Write(buf[:n]); err != nil {
				return u.failed(err)
			}
			u.have += int64(n)
		}
		switch {
		case rerr == io.EOF:
			return u.ended()
		case rerr != nil:
			return u.interrupted(ctx, rerr)
		}
	}
}

func (u *upload) tooMuch() error {
	return protocol.Failf(capability.ReasonDigest, "more was sent than the %d bytes that were announced; nothing was written", u.in.Size)
}

// ended is the verdict on a stream that ended in order: one that has an id may be a part.
func (u *upload) ended() error {
	if u.in.Size < 0 {
		u.in.Size = u.have
	}
	if u.have < u.in.Size && u.in.UploadID == "" {
		return protocol.Failf(capability.ReasonDigest, "%d bytes came and %d were announced; nothing was written", u.have, u.in.Size)
	}
	return nil
}

func (u *upload) interrupted(ctx context.Context, err error) error {
	what := "nothing was written"
	if u.in.UploadID != "" {
		what = "nothing was written; what came is kept for a day, to be gone on with"
	}
	err = broken(ctx, err, what)
	var pe *protocol.Error
	if errors.As(err, &pe) && pe.Reason == capability.ReasonCut && u.in.UploadID != "" {
		return &protocol.Error{Code: pe.Code, Reason: capability.ReasonPartial, Message: pe.Message}
	}
	return err
}

// complete checks the content and puts it in place. placed tells whether the part is gone.
func (u *upload) complete(ctx context.Context, out *capability.FSUploadOut) (placed bool, err error) {
	sum, err := u.digest(ctx)
	if err != nil {
		return false, err
	}
	if u.in.SHA256 != "" && sum != u.in.SHA256 {
		return false, protocol.Failf(capability.ReasonDigest, "the content has the SHA-256 %s, which isn't what was promised; nothing was written, and what came is gone", sum)
	}
	defer u.host.locks.lock(u.place.Path())()
	if err := u.look(ctx); err != nil {
		return false, err
	}
	if placed, err = u.finish(ctx, u.file, u.part); err != nil {
		return placed, err
	}
	out.Received, out.Complete, out.Size, out.SHA256, out.Mode, out.Created = u.have, true, u.have, sum, modeOf(u.mode), u.old == nil
	return true, nil
}

// digest is the SHA-256 of the part: of what came, or read again where an earlier try
// brought a part of it.
func (u *upload) digest(ctx context.Context) (string, error) {
	if u.sum != nil {
		return hex.EncodeToString(u.sum.Sum(nil)), nil
	}
	sum, err := hashOf(ctx, io.NewSectionReader(u.file, 0, u.have), math.MaxInt64)
	if ctx.Err() != nil {
		return "", u.interrupted(ctx, context.Cause(ctx))
	}
	if err != nil {
		return "", u.failed(err)
	}
	return sum, nil
}
