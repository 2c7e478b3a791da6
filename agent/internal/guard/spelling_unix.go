//go:build !windows

package guard

import "strings"

// escapes: names are bytes here, so that they need a written form.
const escapes = true

// split cuts an absolute path into its anchor and its components. ok is false for a path
// that isn't absolute.
func split(path string) (anchor string, parts []string, ok bool) {
	if !strings.HasPrefix(path, "/") {
		return "", nil, false
	}
	return "/", strings.Split(path[1:], "/"), true
}

func sameName(a, b string) bool { return a == b }

// odd tells whether a component is a spelling that the system reads as something else.
func odd(string) bool { return false }
