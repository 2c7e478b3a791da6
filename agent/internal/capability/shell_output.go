package capability

import (
	"cmp"
	"context"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/agent/internal/spool"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// shellOutput reads a page of what a command printed. To whom it doesn't belong it looks as
// if it weren't there.
func (h *Host) shellOutput(_ context.Context, c *run.Call, in capability.ShellOutputIn) (capability.ShellOutputOut, error) {
	out := capability.ShellOutputOut{CallID: in.CallID, Stream: cmp.Or(in.Stream, string(spool.Stdout)), Offset: in.Offset, NextOffset: in.Offset}
	none := capability.ShellOutputOut{}
	f, kept, err := h.spool.Open(in.CallID, c.Caller.Principal, spool.Stream(out.Stream))
	switch {
	case errors.Is(err, spool.ErrNotKept):
		return none, protocol.Failf(protocol.ReasonENOENT, "no output of such a call of yours is kept on this host: it is for a day, where a command printed more than its result returned")
	case err != nil:
		return none, h.sysError(err, "the kept output", "can't be read")
	}
	out.Total, out.Partly = kept.Size, !kept.Whole
	if f != nil {
		defer f.Close()
		p, err := pageOf(f, in.Offset, kept.Size, cmp.Or(in.Limit, capability.DefaultOutput), kept.Ended)
		if err != nil {
			return none, h.sysError(err, "the kept output", "can't be read")
		}
		out.Text, out.Offset, out.NextOffset, out.Invalid = p.text, p.from, p.to, p.invalid
	}
	out.EOF = kept.Ended && out.NextOffset >= kept.Size
	return out, nil
}

// textPage is a part of a stream as text.
type textPage struct {
	text     string
	from, to int64
	invalid  bool
}

// pageOf writes the part of r that begins at a byte as text that costs at most limit, which is
// at least that of a rune; size says how much of r counts, final that it won't grow. Runes are
// whole: one that the place is inside of belongs to the page before, one that isn't complete
// to the next.
func pageOf(r io.ReaderAt, at, size int64, limit int, final bool) (textPage, error) {
	out := textPage{from: at, to: at}
	if at >= size {
		return out, nil
	}
	begin := max(0, at-(utf8.UTFMax-1))
	b := make([]byte, min(size-begin, at-begin+int64(limit)))
	if n, err := r.ReadAt(b, begin); n < len(b) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return out, err
	}
	from := int(at - begin)
	if !final {
		b = b[:max(from, wholeRunes(b))]
	}
	for i := range from {
		if r, n := utf8.DecodeRune(b[i:]); r != utf8.RuneError && i+n > from {
			from = i + n
			break
		}
	}
	b = b[from:]
	b = b[:fitHead(b, limit)]
	out.from = begin + int64(from)
	out.to = out.from + int64(len(b))
	out.text, out.invalid = clean(b)
	return out, nil
}
