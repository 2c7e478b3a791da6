package guard

import (
	"path/filepath"
	"strings"
)

// escapes: names can't hold what would need it, and the backslash separates.
const escapes = false

// split cuts an absolute path into its anchor (a volume with its root) and its components.
// Forms that leave the ordinary name rules (\\?\, \\.\, \??\) and drive-relative paths
// (C:x, \x) aren't taken.
func split(path string) (anchor string, parts []string, ok bool) {
	p := strings.ReplaceAll(path, "/", `\`)
	if strings.HasPrefix(p, `\\?\`) || strings.HasPrefix(p, `\\.\`) || strings.HasPrefix(p, `\??\`) || !filepath.IsAbs(p) {
		return "", nil, false
	}
	vol := filepath.VolumeName(p)
	return vol + `\`, strings.Split(strings.TrimLeft(p[len(vol):], `\`), `\`), true
}

func sameName(a, b string) bool { return strings.EqualFold(a, b) }

// odd tells whether a component is a spelling that the system reads as something else: a
// stream (file:stream), a device name, a trailing dot or space.
func odd(name string) bool {
	if name == "." || name == ".." || name == "" {
		return false
	}
	return strings.Contains(name, ":") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, " ") || !filepath.IsLocal(name)
}
