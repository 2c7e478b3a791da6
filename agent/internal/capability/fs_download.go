package capability

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
)

// pieceBytes is how much of a file is in memory at once.
const pieceBytes = 64 << 10

// download is one file on its way to the server.
type download struct {
	host *Host
	path string // the caller's own
	file *os.File
	info fs.FileInfo // as it was when the file was opened
	src  *content
}

// fsDownload sends a file, or a part of it, as a stream.
func (h *Host) fsDownload(ctx context.Context, c *run.Call, in capability.FSDownloadIn) (capability.FSDownloadOut, error) {
	none := capability.FSDownloadOut{}
	place, err := h.Files.Resolve(in.Path)
	if err != nil {
		return none, err
	}
	defer place.Close()
	f, info, err := h.openRegular(place, in.Path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	d := &download{host: h, path: in.Path, file: f, info: info}
	if d.src, err = contentOf(f, info); err != nil {
		return none, d.failed(err)
	}
	if err := d.settled(); err != nil {
		return none, err
	}
	out := capability.FSDownloadOut{FSFileHead: capability.FSFileHead{Path: guard.Escape(place.Path()), Size: d.src.size,
		Mode: modeOf(info.Mode()), Modified: stamp(info.ModTime()), Version: d.version()}}
	if err := choose(in, &out.FSFileHead); err != nil || in.Head {
		return out, err
	}
	if err := d.send(ctx, c, in, &out); err != nil {
		return none, d.failed(err)
	}
	return out, nil
}

func (d *download) failed(err error) error { return d.host.sysError(err, d.path, "can't be read") }

// settled refuses what was read into memory and isn't the whole file as it was.
func (d *download) settled() error {
	switch {
	case d.src.size > wholeBytes:
		return nil // it's read on the way
	case d.src.size == wholeBytes && d.info.Size() != wholeBytes:
		return protocol.Errorf(protocol.CodeTooLarge, "the system doesn't tell this file's size, and it has more than the %d bytes that are read then; use shell_exec", wholeBytes)
	}
	return d.unchanged()
}

// version names the file's state by size, time of change and inode; where the size says
// nothing (in /proc), by the content.
func (d *download) version() string {
	if d.info.Size() != d.src.size {
		b := make([]byte, d.src.size)
		_, _ = d.src.ReadAt(b, 0) // from memory
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:16])
	}
	return fmt.Sprintf("%x-%x-%x", d.src.size, d.info.ModTime().UnixNano(), inodeOf(d.info))
}

// choose settles which bytes are sent.
func choose(in capability.FSDownloadIn, head *capability.FSFileHead) error {
	if in.IfVersion != "" && in.IfVersion != head.Version {
		in.Offset, in.Length = 0, 0
	}
	head.Offset = in.Offset
	if in.Offset < 0 {
		head.Offset = max(0, head.Size+in.Offset)
	}
	if head.Offset > head.Size || head.Offset == head.Size && in.Offset > 0 {
		head.Offset = 0
		return protocol.Failf(capability.ReasonRange, "the file has %d bytes; nothing begins at %d", head.Size, in.Offset)
	}
	head.Length = head.Size - head.Offset
	if in.Length > 0 {
		head.Length = min(head.Length, in.Length)
	}
	return nil
}

// unchanged tells whether the file is still as it was when it was opened.
func (d *download) unchanged() error {
	now, err := d.file.Stat()
	if err != nil {
		return err
	}
	if now.Size() != d.info.Size() || !now.ModTime().Equal(d.info.ModTime()) {
		return d.changed()
	}
	return nil
}

func (d *download) changed() error {
	return protocol.Failf(capability.ReasonChanged,
		"%s changed while it was read, so what was sent is no state it ever had; try again, or copy it on the host first (shell_exec cp) and fetch the copy", guard.Shown(guard.Unescape(d.path)))
}

// send streams the head and the part.
func (d *download) send(ctx context.Context, c *run.Call, in capability.FSDownloadIn, out *capability.FSDownloadOut) (err error) {
	head, err := json.Marshal(out.FSFileHead)
	if err != nil {
		return err
	}
	head = append(head, '\n')
	up, err := c.Out(int64(len(head)) + out.Length)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			up.Reset()
		}
	}()
	if _, err := up.Write(head); err != nil {
		return broken(ctx, err, "nothing was sent")
	}
	whole := out.Length == out.Size
	sum, all := sha256.New(), sha256.New()
	end := out.Offset + out.Length
	if in.FileHash && !whole {
		if err := d.copy(ctx, io.Discard, all, 0, out.Offset); err != nil {
			return err
		}
		err = d.copy(ctx, io.MultiWriter(up, sum), all, out.Offset, end)
	} else {
		err = d.copy(ctx, up, sum, out.Offset, end)
	}
	if err == nil && in.FileHash && !whole {
		err = d.copy(ctx, io.Discard, all, end, out.Size)
	}
	if err != nil {
		return err
	}
	if d.src.size > wholeBytes {
		if err := d.unchanged(); err != nil {
			return err
		}
	}
	out.SHA256 = hex.EncodeToString(sum.Sum(nil))
	switch {
	case whole:
		out.FileSHA256 = out.SHA256
	case in.FileHash:
		out.FileSHA256 = hex.EncodeToString(all.Sum(nil))
	}
	if err := up.Close(); err != nil {
		return broken(ctx, err, "the end of the file was not sent")
	}
	return nil
}

// copy passes the bytes from start to end on, and through sum.
func (d *download) copy(ctx context.Context, to io.Writer, sum hash.Hash, start, end int64) error {
	buf := make([]byte, pieceBytes)
	for start < end {
		if ctx.Err() != nil {
			return broken(ctx, context.Cause(ctx), "the rest of the file was not sent")
		}
		n, err := d.src.ReadAt(buf[:min(int64(len(buf)), end-start)], start)
		if n == 0 && err == io.EOF {
			return d.changed() // it has become shorter
		}
		if n == 0 && err != nil {
			return err
		}
		sum.Write(buf[:n])
		if _, err := to.Write(buf[:n]); err != nil {
			return broken(ctx, err, "the rest of the file was not sent")
		}
		start += int64(n)
	}
	return nil
}

// causeWait is how long the reason for a stream's end is waited for: who gives one up for
// a call's end says both, and the stream's end may be heard first.
const causeWait = time.Second

// broken is the error of a stream that failed under a call; what says what became of it. When
// the call was ended, that's why, whatever the stream says.
func broken(ctx context.Context, err error, what string) error {
	wait := time.NewTimer(causeWait)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-wait.C:
	}
	var pe *protocol.Error
	cut := run.IsCut(context.Cause(ctx))
	switch {
	case ctx.Err() != nil && !cut:
		return run.Ended(ctx, what)
	case errors.As(err, &pe) && !cut:
		return pe
	}
	return protocol.Failf(capability.ReasonCut, "the stream between server and host broke (%s); %s", text.Line(err.Error(), 200), what)
}
