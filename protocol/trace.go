package protocol

// TraceparentLen is the length of a Traceparent, in bytes.
const TraceparentLen = 55

// ValidTraceparent tells that s is a W3C trace context of version 00: 00-TRACE-PARENT-FLAGS
// in lower-case hexadecimal, neither id all zeros. Nothing else is passed on, shown or put
// into a command's environment.
func ValidTraceparent(s string) bool {
	if len(s) != TraceparentLen || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	return lowerHex(s[3:35], true) && lowerHex(s[36:52], true) && lowerHex(s[53:], false)
}

// lowerHex tells that all of s are hexadecimal digits, and one isn't 0 where something is
// needed.
func lowerHex(s string, something bool) bool {
	zeros := true
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
		zeros = zeros && c == '0'
	}
	return !zeros || !something
}
