package capability

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol/capability"
)

const (
	// defaultLines is how many lines are read when the caller doesn't say.
	defaultLines = 2000
	// wholeBytes is up to which size a file is read whole into memory. Files of /proc and
	// /sys, whose size says nothing, are among these.
	wholeBytes = 1 << 20
	// imageBytes is the largest image that's returned as one; about 1 MB as base64.
	imageBytes = 750_000
	// hashBytes is up to which size the content's hash comes with it.
	hashBytes = 16 << 20
	// sniffBytes is how much of a file's beginning tells text from binary.
	sniffBytes = 8 << 10
)

// content is an open file as fs_read sees it: the size is that of the moment of opening.
type content struct {
	io.ReaderAt
	size int64
	head []byte // the first bytes
}

// fsRead reads a window of a file.
func (h *Host) fsRead(ctx context.Context, _ *run.Call, in capability.FSReadIn) (capability.FSReadOut, error) {
	none := capability.FSReadOut{}
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
	src, err := contentOf(f, info)
	if err != nil {
		return none, h.sysError(err, in.Path, "can't be read")
	}
	out := capability.FSReadOut{Path: guard.Escape(place.Path()), Size: src.size, Modified: stamp(info.ModTime())}
	if src.size <= hashBytes {
		if out.SHA256, err = hashOf(ctx, io.NewSectionReader(src, 0, src.size), hashBytes); err != nil {
			return none, h.sysError(err, in.Path, "can't be read")
		}
	}
	if mime := imageType(src.head); mime != "" && wantsWhole(in, src.size) {
		return h.wholeImage(out, src, mime, in.Path)
	}
	if err := readWindow(ctx, src, in, &out); err != nil {
		return none, h.sysError(err, in.Path, "can't be read")
	}
	return out, nil
}

func contentOf(f *os.File, info fs.FileInfo) (*content, error) {
	if info.Size() > wholeBytes {
		head := make([]byte, sniffBytes)
		n, err := f.ReadAt(head, 0)
		if err != nil && err != io.EOF {
			return nil, err
		}
		return &content{ReaderAt: f, size: info.Size(), head: head[:n]}, nil
	}
	// Some files of /proc and /sys give data as it comes; what's there now is taken.
	_ = f.SetReadDeadline(time.Now().Add(time.Second))
	b, err := io.ReadAll(io.LimitReader(f, wholeBytes))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, syscall.EAGAIN) {
		return nil, err
	}
	return &content{ReaderAt: bytes.NewReader(b), size: int64(len(b)), head: b[:min(len(b), sniffBytes)]}, nil
}

// imageType tells the media type of an image that models take, or "".
func imageType(head []byte) string {
	mime := http.DetectContentType(head)
	if slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, mime) {
		return mime
	}
	return ""
}

// wantsWhole: the caller asked for no part of the file, and it's small enough.
func wantsWhole(in capability.FSReadIn, size int64) bool {
	most := int64(imageBytes)
	if in.MaxBytes > 0 {
		most = min(most, rawRoom(in.MaxBytes))
	}
	return in.Unit != "bytes" && in.Offset == 0 && in.Limit == 0 && size <= most
}

func (h *Host) wholeImage(out capability.FSReadOut, src *content, mime, path string) (capability.FSReadOut, error) {
	b := make([]byte, src.size)
	n, err := src.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return capability.FSReadOut{}, h.sysError(err, path, "can't be read")
	}
	out.Kind, out.MIME, out.Unit = "image", mime, "bytes"
	out.Data = base64.StdEncoding.EncodeToString(b[:n])
	return out, nil
}

// rawRoom is how many bytes fit as base64.
func rawRoom(limit int) int64 { return int64(limit) / 4 * 3 }

// readWindow finds the window that was asked for and fills in what fits of it.
func readWindow(ctx context.Context, src *content, in capability.FSReadIn, out *capability.FSReadOut) error {
	limit := cmp.Or(in.MaxBytes, capability.DefaultOutput)
	lines := in.Unit != "bytes"
	start, offset := from(in.Offset, src.size), in.Offset
	want := min(cmp.Or(in.Limit, int64(limit)), int64(limit))
	if lines {
		var err error
		if start, offset, err = findLine(ctx, src, in.Offset); err != nil {
			return err
		}
		want = int64(limit)
	}
	buf := make([]byte, min(want, src.size-start))
	n, err := src.ReadAt(buf, start)
	if err != nil && err != io.EOF {
		return err
	}
	buf = buf[:n]
	out.ByteOffset = start
	if !isText(src, buf, start) {
		binaryWindow(src, buf, limit, out)
		return nil
	}
	if lines {
		out.Unit, out.Offset = "lines", offset
		lineWindow(src, buf, limit, cmp.Or(in.Limit, defaultLines), out)
	} else {
		byteWindow(src, buf, limit, out)
	}
	return nil
}

// from is where an offset in bytes begins; negative ones count from the end.
func from(offset, size int64) int64 {
	if offset < 0 {
		return max(0, size+offset)
	}
	return min(offset, size)
}

// isText tells whether a file's beginning and the window are UTF-8 without NUL; runes cut
// at the edges don't count.
func isText(src *content, window []byte, start int64) bool {
	head := src.head
	if int64(len(head)) < src.size {
		head = head[:wholeRunes(head)]
	}
	if start > 0 {
		window = window[strayBytes(window):]
	}
	if start+int64(len(window)) < src.size {
		window = window[:wholeRunes(window)]
	}
	return utf8.Valid(head) && utf8.Valid(window) && bytes.IndexByte(head, 0) < 0 && bytes.IndexByte(window, 0) < 0
}

func binaryWindow(src *content, buf []byte, limit int, out *capability.FSReadOut) {
	buf = buf[:min(int64(len(buf)), rawRoom(limit))]
	out.Kind, out.MIME, out.Unit = "binary", http.DetectContentType(src.head), "bytes"
	out.Data = base64.StdEncoding.EncodeToString(buf)
	out.Offset = out.ByteOffset
	if end := out.ByteOffset + int64(len(buf)); end < src.size {
		out.NextOffset, out.Truncated = end, true
	}
}

func byteWindow(src *content, buf []byte, limit int, out *capability.FSReadOut) {
	if out.ByteOffset > 0 {
		stray := strayBytes(buf)
		buf = buf[stray:]
		out.ByteOffset += int64(stray)
	}
	if out.ByteOffset+int64(len(buf)) < src.size {
		if whole := wholeRunes(buf); whole > 0 {
			buf = buf[:whole]
		}
	}
	buf = buf[:fitHead(buf, limit)]
	out.Kind, out.Unit, out.Text, out.Offset = "text", "bytes", string(buf), out.ByteOffset
	if end := out.ByteOffset + int64(len(buf)); end < src.size {
		out.NextOffset, out.Truncated = end, true
	}
}

// lineWindow takes whole lines while they fit; a first line that doesn't fit is cut.
func lineWindow(src *content, buf []byte, limit int, most int64, out *capability.FSReadOut) {
	fits := fitHead(buf, limit)
	all := out.ByteOffset+int64(fits) == src.size // the last line may lack its line break
	end, count := 0, int64(0)
	for end < fits && count < most {
		n := bytes.IndexByte(buf[end:fits], '\n') + 1
		if n == 0 && all {
			n = fits - end
		}
		if n == 0 {
			break
		}
		end += n
		count++
	}
	out.Kind = "text"
	if end == 0 && fits > 0 {
		end = wholeRunes(buf[:fits])
		out.Text, out.Truncated = string(buf[:end]), true
		out.NextByteOffset = out.ByteOffset + int64(end)
		return
	}
	out.Text = string(buf[:end])
	if out.ByteOffset+int64(end) < src.size {
		out.NextOffset, out.Truncated = out.Offset+count, true
	}
}
