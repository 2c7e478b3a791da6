package capability

import (
	"io/fs"
	"os"
)

const openFlags = 0

// owners: the file infos of Windows name none.
type owners struct{}

func (*owners) of(fs.FileInfo) (owner, group string) { return "", "" }

// keepAttributes: the new file gets its folder's permissions, as every new file does.
func keepAttributes(*os.File, *os.File, fs.FileInfo) error { return nil }
