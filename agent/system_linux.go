package agent

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// osVersion is the distribution's own name for itself.
func osVersion() string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			value, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME=")
			if !ok {
				continue
			}
			if text, err := strconv.Unquote(value); err == nil {
				return text
			}
			return strings.Trim(value, `'"`)
		}
	}
	return "Linux"
}
