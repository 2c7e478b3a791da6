package guard

import "golang.org/x/sys/unix"

// searchFlags open a folder to go through it, for which its x bit is enough.
const searchFlags = unix.O_SEARCH

// misleads: every link leads where it says.
func (*folder) misleads(string, string) bool { return false }
