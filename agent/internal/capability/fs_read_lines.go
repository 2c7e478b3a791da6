package capability

import (
	"bytes"
	"context"
	"io"

	"github.com/drover-fleet/drover/protocol"
)

const (
	// forwardBytes is how far lines are counted from a file's beginning.
	forwardBytes = 1 << 30
	// backwardBytes is how far lines are counted from its end.
	backwardBytes = 16 << 20
	scanBytes     = 256 << 10
)

// findLine finds where a line begins: from 0 on, or negative from the end. The offset
// returned names the same line; it differs when the file has fewer lines than a negative
// one asks for.
func findLine(ctx context.Context, src *content, offset int64) (start, line int64, err error) {
	switch {
	case offset == 0:
		return 0, 0, nil
	case offset > 0:
		start, err = lineForward(ctx, src, offset)
		return start, offset, err
	}
	start, err = lineBackward(ctx, src, -offset)
	if start == 0 {
		offset = 0
	}
	return start, offset, err
}

// lineForward finds the byte after the n-th line break; the end when there are fewer.
func lineForward(ctx context.Context, src *content, n int64) (int64, error) {
	buf := make([]byte, scanBytes)
	for at := int64(0); at < src.size; {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if at >= forwardBytes {
			return 0, protocol.Errorf(protocol.CodeTooLarge,
				"line %d lies beyond the first %d bytes, up to where lines are counted; use a negative offset, or unit bytes", n, int64(forwardBytes))
		}
		k, err := src.ReadAt(buf, at)
		if err != nil && err != io.EOF || k == 0 {
			return src.size, ignoreEOF(err)
		}
		chunk := buf[:k]
		if have := int64(bytes.Count(chunk, []byte{'\n'})); have < n {
			n -= have
			at += int64(k)
			continue
		}
		pos := 0
		for ; n > 0; n-- {
			pos += bytes.IndexByte(chunk[pos:], '\n') + 1
		}
		return at + int64(pos), nil
	}
	return src.size, nil
}

// lineBackward finds where the n-th line from the end begins; 0 when there are fewer. A
// line break at the very end ends the last line and begins none.
func lineBackward(ctx context.Context, src *content, n int64) (int64, error) {
	buf := make([]byte, scanBytes)
	end := src.size
	for end > 0 {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if src.size-end >= backwardBytes {
			return 0, protocol.Errorf(protocol.CodeTooLarge,
				"the last %d bytes, up to where lines are counted from the end, hold fewer than %d lines; use unit bytes with a negative offset", int64(backwardBytes), n)
		}
		from := max(0, end-scanBytes)
		chunk := buf[:end-from]
		if k, err := src.ReadAt(chunk, from); err != nil && err != io.EOF || k < len(chunk) {
			return src.size, ignoreEOF(err)
		}
		search := chunk
		if end == src.size && chunk[len(chunk)-1] == '\n' {
			search = chunk[:len(chunk)-1]
		}
		for {
			i := bytes.LastIndexByte(search, '\n')
			if i < 0 {
				break
			}
			if n--; n == 0 {
				return from + int64(i) + 1, nil
			}
			search = search[:i]
		}
		end = from
	}
	return 0, nil
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
