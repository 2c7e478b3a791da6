package tunnel

import (
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
)

// cleanFacts cuts and cleans what a host says of itself: hostile text that goes on to
// pages, logs, lists and models.
func cleanFacts(f protocol.Facts) protocol.Facts {
	out := protocol.Facts{
		Hostname:     text.Line(f.Hostname, 253),
		OS:           text.Line(f.OS, 256),
		OSVersion:    text.Line(f.OSVersion, 256),
		Arch:         text.Line(f.Arch, 256),
		RunAs:        text.Line(f.RunAs, 256),
		AgentVersion: text.Line(f.AgentVersion, 256),
		ClockAheadMS: min(max(f.ClockAheadMS, -maxSkewMS), maxSkewMS),
	}
	for i, root := range f.Roots {
		if i == protocol.MaxRoots {
			break
		}
		out.Roots = append(out.Roots, text.Line(root, 256))
	}
	return out
}

// maxSkewMS bounds how much a clock may differ, in milliseconds: a hundred years.
const maxSkewMS = 100 * 365 * 24 * 3600 * 1000

// badCapabilities tells what is wrong with a list of capabilities, or "". Unlike texts,
// names are never repaired: a list of tools is made of them.
func badCapabilities(caps []protocol.Capability) string {
	if len(caps) > protocol.MaxCapabilities {
		return "too many capabilities"
	}
	seen := make(map[string]bool, len(caps))
	for _, c := range caps {
		switch {
		case !capabilityName(c.Name):
			return "a malformed capability name"
		case c.Version < 1 || c.Version > 1<<20:
			return "a capability's version out of range"
		case seen[c.Name]:
			return "a capability named twice"
		}
		seen[c.Name] = true
	}
	return ""
}

// capabilityName checks group_verb: [a-z0-9]+_[a-z0-9_]+, at most 40 characters.
func capabilityName(s string) bool {
	if len(s) > 40 {
		return false
	}
	under := -1
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '_':
			if under < 0 {
				under = i
			}
		case (c < 'a' || c > 'z') && (c < '0' || c > '9'):
			return false
		}
	}
	return under > 0 && under < len(s)-1
}
