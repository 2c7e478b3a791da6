package capability

import (
	"context"
	"path/filepath"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// maxHash is the largest file that fs_stat hashes, in bytes.
const maxHash = 1 << 30

// fsStat describes one path; a link itself.
func (h *Host) fsStat(ctx context.Context, _ *run.Call, in capability.FSStatIn) (capability.FSStatOut, error) {
	none := capability.FSStatOut{}
	place, err := h.Files.ResolveLink(in.Path)
	if err != nil {
		return none, err
	}
	defer place.Close()
	info, err := place.Lstat()
	if err != nil {
		return none, h.sysError(err, in.Path, "can't be described")
	}
	d := describer{files: h.Files, owners: &h.owners}
	out := capability.FSStatOut{FSEntry: d.entry(place, filepath.Base(place.Path()), info)}
	to := place
	if out.Type == "link" {
		if leads, _, ok := h.Files.Leads(place); ok {
			defer leads.Close()
			to = leads
		}
	}
	if resolved := guard.Escape(to.Path()); resolved != filepath.Clean(in.Path) {
		out.Resolved = resolved
	}
	out.Path = filepath.Clean(in.Path)
	if !in.SHA256 {
		return out, nil
	}
	f, info, err := h.openRegular(to, in.Path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	if info.Size() > maxHash {
		return none, protocol.Errorf(protocol.CodeTooLarge, "the file has %d bytes; fs_stat hashes up to %d. Use shell_exec with sha256sum", info.Size(), int64(maxHash))
	}
	if out.SHA256, err = hashOf(ctx, f, maxHash); err != nil {
		return none, h.sysError(err, in.Path, "can't be hashed")
	}
	return out, nil
}
