package capability

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

const (
	defaultEntries = 500
	// listBytes ends a page early, so that long names don't outgrow an answer.
	listBytes = 512 << 10
)

// fsList lists a folder, a page at a time, sorted by the bytes of the names. One entry
// that can't be described doesn't fail the others.
func (h *Host) fsList(ctx context.Context, _ *run.Call, in capability.FSListIn) (capability.FSListOut, error) {
	none := capability.FSListOut{}
	place, err := h.Files.Resolve(in.Path)
	if err != nil {
		return none, err
	}
	defer place.Close()
	if info, err := place.Lstat(); err != nil {
		return none, h.sysError(err, in.Path, "can't be listed")
	} else if !info.IsDir() {
		return none, protocol.Failf(protocol.ReasonENOTDIR, "%s is a %s, not a folder", guard.Shown(guard.Unescape(in.Path)), typeOf(info.Mode()))
	}
	dir, err := place.List()
	if err != nil {
		return none, h.sysError(err, in.Path, "can't be listed")
	}
	defer dir.Close()
	limit := cmp.Or(in.Limit, defaultEntries)
	hidden := in.Hidden == nil || *in.Hidden
	names, total, err := page(ctx, dir.File, guard.Unescape(in.Cursor), limit, hidden)
	if err != nil {
		return none, h.sysError(err, in.Path, "can't be listed")
	}
	out := capability.FSListOut{Path: guard.Escape(place.Path()), Entries: []capability.FSEntry{}, Total: total}
	d, size := describer{files: h.Files, owners: &h.owners}, 0
	for i, name := range names {
		if i == limit || size > listBytes {
			out.NextCursor = guard.Escape(names[i-1])
			break
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		child := dir.Child(name)
		info, err := child.Lstat()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went meanwhile
		}
		e := capability.FSEntry{Name: guard.Escape(name), Path: guard.Escape(child.Path()), Type: "other"}
		if err == nil {
			e = d.entry(child, name, info)
		}
		size += cost([]byte(e.Name)) + cost([]byte(e.Path)) + cost([]byte(e.Target)) + 200
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// page reads a folder's names and keeps the first ones after cursor, one more than limit
// when there are more. Space is bounded however large the folder is.
func page(ctx context.Context, dir *os.File, cursor string, limit int, hidden bool) (names []string, total int, err error) {
	keep := func() {
		slices.Sort(names)
		names = names[:min(len(names), limit+1)]
	}
	for {
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		batch, err := dir.Readdirnames(1024)
		total += len(batch)
		for _, name := range batch {
			if name > cursor && (hidden || !strings.HasPrefix(name, ".")) {
				names = append(names, name)
			}
		}
		if len(names) > 4*(limit+1)+4096 {
			keep()
		}
		if err == io.EOF {
			keep()
			return names, total, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}
